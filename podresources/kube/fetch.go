package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// maxObjectSize bounds a claim, pod or node, in bytes; etcd takes objects of 1.5 MiB.
const maxObjectSize = 4 << 20

// answer is the result of reading a claim.
type answer struct {
	found bool // it is a claim that can be used
	bare  bool // the claim was not allocated
}

// read requests an object by its name, and gives the Book the answer. An object that does not exist
// is not an error.
func (r *reader) read(ctx context.Context, o object) (of answer, err error) {
	asked := r.config.Now()
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	kind := "claim"
	if o.uid == "" {
		of, err = r.readClaim(ctx, o.claim(), asked)
	} else {
		kind, err = "pod", r.readPod(ctx, o, asked)
	}
	if err != nil {
		err = withReason(fmt.Errorf("get %s %s/%s: %w", kind, o.namespace, o.name, err))
	}
	r.report(r.config.Now().Sub(asked), err)
	return of, err
}

func (r *reader) readClaim(ctx context.Context, claim podresources.Claim, asked time.Time) (of answer, err error) {
	body, err := r.versions.claim(ctx, claim)
	switch {
	case apierrors.IsNotFound(err) && !errors.Is(err, errNotServed):
		r.config.Book.ClaimDeleted(claim, asked)
		return of, nil
	case err != nil:
		return of, err
	}
	defer body.Close()
	raw, err := io.ReadAll(limited(body, maxObjectSize))
	if err != nil {
		return of, answerError(err)
	}
	rejected := driver.Rejections{}
	name, facts, ok := parseClaim(raw, r.config.Selection.ClaimLabels, rejected)
	of = answer{found: ok && name == claim, bare: len(facts.Results) == 0}
	if !of.found {
		rejected.Add(driver.ReasonMalformedClaim, 1)
	}
	r.mu.Lock()
	r.rejected.AddAll(rejected)
	r.mu.Unlock()
	if of.found {
		facts.Read = asked
		r.config.Book.ClaimRead(claim, facts)
	}
	return of, nil
}

// readPod reads a pod by its name, which does not require the right to list pods. An answer about
// another pod with that name is ignored.
func (r *reader) readPod(ctx context.Context, o object, asked time.Time) error {
	path := "/api/v1/namespaces/" + url.PathEscape(o.namespace) + "/pods/" + url.PathEscape(o.name)
	var pod corev1.Pod
	err := getJSON(ctx, r.config.API, path, maxObjectSize, &pod)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, facts, ok := podresources.NewPodFacts(&pod, &r.config.Selection); ok && facts.UID == o.uid {
		r.config.Book.PodRead(facts, asked)
	}
	return nil
}

// known returns the numbers of the claims to read, and of those that were found.
func (r *reader) known() (claims, found int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o, s := range r.objects {
		if o.uid != "" {
			continue
		}
		claims++
		if s.found {
			found++
		}
	}
	return claims, found
}

// rejections returns the number of rejections so far, by reason.
func (r *reader) rejections() driver.Rejections {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.rejected)
}
