package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dra-exporter/dra-exporter/driver"
)

// ErrNoCluster is returned if there is neither a kubeconfig nor a service account's token: the
// program runs outside of a cluster, or without credentials.
var ErrNoCluster = errors.New("not in a cluster, and no kubeconfig given")

// API sends requests to the API server. [Client] implements it; a program creates only one.
type API interface {
	// Get opens the response to a GET of path. Errors are those of
	// k8s.io/apimachinery/pkg/api/errors or of the transport. The caller must close the response.
	Get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error)
}

// Client sends requests to the API server with the credentials of a kubeconfig or of the service
// account. It reads a renewed token from its file within a minute, and follows no redirects. All
// requests share one connection.
type Client struct {
	rest *rest.RESTClient
	host string
}

var _ API = (*Client)(nil)

// NewClient returns the client of the cluster of the kubeconfig or, if it is "", of the cluster
// that the program runs in. It does not connect. Outside of a cluster the error is [ErrNoCluster].
func NewClient(kubeconfig, userAgent string) (*Client, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.UserAgent = userAgent
	return newClient(config)
}

func newClient(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // for Status, the type of the API server's errors
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.ContentType = runtime.ContentTypeJSON
	config.QPS = -1 // callers limit the rate: watches are long, and claims have a budget of their own
	config.WarningHandler = rest.NoWarnings{}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create API client: %w", err)
	}
	own := *client.Client // a copy, since it may be the default client of net/http
	// client-go would add the credentials to the request to any server.
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return errRedirected }
	client.Client = &own
	return &Client{rest: client, host: config.Host}, nil
}

// DefaultConfig returns the kubeconfig that kubectl reads: of those in $KUBECONFIG the first that
// exists, else that in the home folder; "": there is none.
func DefaultConfig() string {
	path := clientcmd.NewDefaultClientConfigLoadingRules().GetDefaultFilename()
	if _, err := os.Stat(path); err != nil && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		return ""
	}
	return path
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("read kubeconfig: %w", err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCluster, err)
	}
	return config, nil
}

// Host returns the API server's address.
func (c *Client) Host() string { return c.host }

// Get implements [API]. It does not retry, not even if the server says when to; callers do.
func (c *Client) Get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
	request := c.rest.Get()
	for name, values := range query {
		for _, value := range values {
			request.Param(name, value)
		}
	}
	return open(ctx, request, "get", path)
}

// Post opens the response to a POST of a JSON object to path. Errors, which have a method Reason
// for a label, and closing are as for Get.
func (c *Client) Post(ctx context.Context, path string, object []byte) (io.ReadCloser, error) {
	return open(ctx, c.rest.Post().Body(object), "post", path)
}

// Patch opens the response to a JSON merge patch (RFC 7386) of the object at path. Errors and
// closing are as for Post.
func (c *Client) Patch(ctx context.Context, path string, patch []byte) (io.ReadCloser, error) {
	return open(ctx, c.rest.Patch(types.MergePatchType).Body(patch), "patch", path)
}

// open sends a request for path.
func open(ctx context.Context, request *rest.Request, verb, path string) (io.ReadCloser, error) {
	body, err := request.AbsPath(path).MaxRetries(0).Stream(ctx)
	if err != nil {
		return nil, withReason(fmt.Errorf("%s %s: %w", verb, path, err))
	}
	return body, nil
}

// Errors in addition to those of the API server and the transport.
var (
	errMalformed  = errors.New("malformed answer")
	errTooLarge   = errors.New("answer too large")
	errRedirected = errors.New("redirected")
	errAnswered   = errors.New("answered") // ends what Node.Check follows
	errNotServed  = errors.New("resource.k8s.io is not served in a supported version")
)

// withReason gives the error of a request its reason.
func withReason(err error) error { return driver.WithReason(reasonOf(err), err) }

// reasonOf returns why a request failed; "" for no error.
func reasonOf(err error) driver.Reason {
	var network net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errMalformed):
		return driver.ReasonMalformed
	case errors.Is(err, errTooLarge):
		return driver.ReasonTooLarge
	case errors.Is(err, errRedirected):
		return driver.ReasonRedirected
	case errors.Is(err, errNotServed):
		return driver.ReasonAbsent
	case isExpired(err):
		return driver.ReasonExpired
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return driver.ReasonAbsent // creating an object in a namespace that is being deleted is answered as forbidden
	case apierrors.IsForbidden(err):
		return driver.ReasonForbidden
	case apierrors.IsUnauthorized(err):
		return driver.ReasonUnauthorized
	case apierrors.IsNotFound(err):
		return driver.ReasonAbsent
	case apierrors.IsTooManyRequests(err):
		return driver.ReasonRateLimited
	case errors.Is(err, context.Canceled):
		return driver.ReasonCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return driver.ReasonTimeout
	case isStatus(err):
		return driver.ReasonServerError
	default:
		return driver.ReasonUnavailable
	}
}

// isExpired reports whether a watch, or the next page of a list, cannot continue from its resource
// version.
func isExpired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// isStatus reports whether the error is a response of the API server.
func isStatus(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// isPathMissing reports whether the path itself is not served, as opposed to an object that does
// not exist.
func isPathMissing(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Name == ""
}

// isPermanent reports whether an error lasts until the cluster is changed.
func isPermanent(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || errors.Is(err, errNotServed)
}

// getter opens the response to a GET with a query. [API.Get] is one.
type getter func(ctx context.Context, path string, query url.Values) (io.ReadCloser, error)

// fetch decodes an answer of at most so many bytes. Errors have a reason.
func fetch(ctx context.Context, get getter, path string, query url.Values, most int64, into any) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	body, err := get(ctx, path, query)
	if err != nil {
		return withReason(err)
	}
	defer body.Close()
	return withReason(decodeJSON(body, most, into))
}

// decodeJSON decodes an answer of at most so many bytes.
func decodeJSON(body io.Reader, most int64, into any) error {
	limit := &io.LimitedReader{R: body, N: most}
	return answerError(json.NewDecoder(limit).Decode(into), limit)
}

// answerError distinguishes answers that are malformed or too large from those that could not be
// read.
func answerError(err error, limit *io.LimitedReader) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case limit.N <= 0:
		return errTooLarge
	case errors.As(err, &syntax), errors.As(err, &kind):
		return fmt.Errorf("%w: %w", errMalformed, err)
	default:
		return fmt.Errorf("read answer: %w", err)
	}
}

const resourceGroup = "/apis/resource.k8s.io"

// resourceVersions are the supported versions of resource.k8s.io, best first (KUBELET's "Stages":
// v1 since Kubernetes 1.34, v1beta2 1.33, v1beta1 1.32, v1alpha3 1.31; later ones serve other
// things under that name, beside v1beta1).
func resourceVersions() []string {
	return []string{"v1", "v1beta2", "v1beta1", "v1alpha3"}
}

// versions requests objects of resource.k8s.io in the best version that is served, which it finds
// by trying them, until that is served no more. It is safe for concurrent use.
type versions struct {
	api  API
	list []string     // best first
	used atomic.Value // a string, "" or nil: not known yet
}

// get opens the response to a GET of a resource (resourceslices, or
// namespaces/NS/resourceclaims/NAME) with a query.
func (v *versions) get(ctx context.Context, resource string, query url.Values) (body io.ReadCloser, err error) {
	try := v.list
	if used := v.known(); used != "" {
		try = append([]string{used}, try...)
	}
	for _, version := range try {
		body, err = v.api.Get(ctx, resourceGroup+"/"+version+"/"+resource, query)
		if err == nil {
			v.used.Store(version)
		}
		if !isPathMissing(err) {
			return body, err
		}
	}
	v.used.Store("")
	return nil, fmt.Errorf("%w: %w", errNotServed, err)
}

// known returns the version in use.
func (v *versions) known() string {
	used, _ := v.used.Load().(string)
	return used
}

// claimPath returns the path of a claim within a version.
func claimPath(namespace, name string) string {
	return "namespaces/" + url.PathEscape(namespace) + "/resourceclaims/" + url.PathEscape(name)
}

// Bounds of what a [Finder] reads for one answer.
const (
	maxFound     = 16 << 20 // bytes of all EndpointSlices of a Service
	maxFoundPods = 16       // of a claim that are asked for their nodes
)

// Finder finds the nodes of claims and pods, and the exporters of a Service, by requests
// to the API server. It keeps only the version of resource.k8s.io, and is safe for concurrent use.
// An object that does not exist has no node; that is not an error. Errors have a method Reason.
type Finder struct {
	api      API
	versions *versions
}

// NewFinder returns a finder. It does not connect.
func NewFinder(api API) *Finder {
	return &Finder{api: api, versions: &versions{api: api, list: resourceVersions()}}
}

// ClaimNodes returns the nodes that may use a claim, sorted: the one that its allocation names,
// else those of the pods for which it is reserved.
func (f *Finder) ClaimNodes(ctx context.Context, namespace, name string) ([]string, error) {
	var claim claimObject
	if found, err := f.get(ctx, f.versions.get, claimPath(namespace, name), &claim); err != nil || !found {
		return nil, err
	}
	if allocation := claim.Status.Allocation; allocation != nil {
		if node := selectedNode(allocation.NodeSelector); node != "" {
			return []string{node}, nil
		}
	}
	var nodes []string
	for i, r := range claim.Status.ReservedFor {
		if r.Resource != "pods" || i == maxFoundPods {
			break
		}
		node, err := f.PodNode(ctx, namespace, r.Name)
		if err != nil {
			return nil, err
		}
		if node != "" {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// selectedNode returns the node that is selected by its name, as of a claim of devices of a node,
// "" if other nodes may match.
func selectedNode(s *corev1.NodeSelector) string {
	if s == nil || len(s.NodeSelectorTerms) != 1 {
		return ""
	}
	for _, f := range s.NodeSelectorTerms[0].MatchFields {
		if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
			return f.Values[0]
		}
	}
	return ""
}

// PodNode returns the node that a pod is bound to, "" for none.
func (f *Finder) PodNode(ctx context.Context, namespace, name string) (string, error) {
	var pod corev1.Pod
	_, err := f.get(ctx, f.api.Get, podPath(namespace, name), &pod)
	return pod.Spec.NodeName, err
}

// Exporters returns the addresses (HOST:PORT) of the endpoints of a Service, by node, for endpoints
// that are pods with a known node: of several pods on a node, one that is not terminating. port is
// the name of the Service's port.
func (f *Finder) Exporters(ctx context.Context, namespace, service, port string) (map[string]string, error) {
	path := "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/endpointslices"
	query := url.Values{"labelSelector": {discoveryv1.LabelServiceName + "=" + service}, "resourceVersion": {"0"}}
	var list discoveryv1.EndpointSliceList
	if err := fetch(ctx, f.api.Get, path, query, maxFound, &list); err != nil {
		return nil, err
	}
	out, ending := map[string]string{}, map[string]bool{}
	for n := range list.Items {
		slice := &list.Items[n]
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		at := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Name != nil && *p.Name == port && p.Port != nil
		})
		if at < 0 {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.NodeName == nil || e.TargetRef == nil || e.TargetRef.Kind != "Pod" || len(e.Addresses) == 0 {
				continue
			}
			ends := e.Conditions.Terminating != nil && *e.Conditions.Terminating
			if _, has := out[*e.NodeName]; !has || ending[*e.NodeName] && !ends {
				out[*e.NodeName] = net.JoinHostPort(e.Addresses[0], fmt.Sprint(*slice.Ports[at].Port))
				ending[*e.NodeName] = ends
			}
		}
	}
	return out, nil
}

// get decodes an object, and reports whether it exists.
func (f *Finder) get(ctx context.Context, get getter, path string, into any) (bool, error) {
	err := fetch(ctx, get, path, nil, maxObjectSize, into)
	if apierrors.IsNotFound(err) && !isPathMissing(err) {
		return false, nil
	}
	return err == nil, err
}
