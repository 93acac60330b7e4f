package kubetest

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

func itoa(n int) string { return strconv.Itoa(n) }

// request is a parsed request.
type request struct {
	version                   string // of resource.k8s.io
	resource, namespace, name string
	watch, bookmarks          bool
	initial                   bool // the watch begins with all objects
	from                      string
	fields                    fields.Selector
	labels                    labels.Selector
	timeout                   time.Duration
	limit, skip               int // of a list: the most objects of a page (0: all), and those of the pages before
}

// selectable are the fields that a selector may have.
func selectable() []string {
	return []string{"spec.nodeName", "status.nominatedNodeName", "spec.driver"}
}

// parse parses a request. It returns false if the path does not exist.
func (s *Server) parse(r *http.Request) (request, bool) {
	q := r.URL.Query()
	seconds, _ := strconv.Atoi(q.Get("timeoutSeconds"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	skip, _ := strconv.Atoi(q.Get("continue"))
	out := request{
		watch: q.Get("watch") == "true", bookmarks: q.Get("allowWatchBookmarks") == "true",
		initial: q.Get("sendInitialEvents") == "true" && q.Get("resourceVersionMatch") == "NotOlderThan",
		from:    q.Get("resourceVersion"), timeout: time.Duration(seconds) * time.Second, limit: limit, skip: skip,
	}
	var err error
	if out.fields, err = fields.ParseSelector(q.Get("fieldSelector")); err != nil {
		return out, false
	}
	for _, r := range out.fields.Requirements() {
		if !slices.Contains(selectable(), r.Field) { // the API server refuses it
			return out, false
		}
	}
	if out.labels, err = labels.Parse(q.Get("labelSelector")); err != nil {
		return out, false
	}
	group, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if group == "apis" {
		group, path, _ = strings.Cut(path, "/")
	}
	out.version, path, _ = strings.Cut(path, "/")
	if in, ok := strings.CutPrefix(path, "namespaces/"); ok {
		out.namespace, path, _ = strings.Cut(in, "/")
	}
	out.resource, out.name, _ = strings.Cut(path, "/")
	if group != "resource.k8s.io" {
		return out, out.resource != ""
	}
	return out, slices.Contains(s.versions, out.version) && !slices.Contains(s.lacking[out.resource], out.version)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.usage.Requests++
	in, ok := s.parse(r)
	fault := None
	if s.fault != nil {
		fault = s.fault(in.resource, in.watch)
	}
	s.mu.Unlock()
	counted := &countingWriter{ResponseWriter: w, server: s}
	switch {
	case fault != None:
		s.fail(r.Context(), counted, fault)
	case r.Method == http.MethodPost, r.Method == http.MethodPatch:
		s.review(counted, r)
	case !ok:
		http.Error(counted, "404 page not found", http.StatusNotFound)
	case in.watch:
		s.watch(r.Context(), counted, in)
	case in.name != "":
		s.get(counted, in)
	default:
		s.list(counted, in)
	}
}

func (s *Server) fail(ctx context.Context, w http.ResponseWriter, fault Fault) {
	switch fault {
	case Hang:
		<-ctx.Done()
	case Broken:
		_, _ = io.WriteString(w, `{"items":[}`)
	case Unauthorized:
		writeStatus(w, http.StatusUnauthorized, "Unauthorized", "")
	case Forbidden:
		writeStatus(w, http.StatusForbidden, "Forbidden", "")
	case TooManyRequests:
		writeStatus(w, http.StatusTooManyRequests, "TooManyRequests", "")
	default:
		writeStatus(w, http.StatusServiceUnavailable, "ServiceUnavailable", "")
	}
}

func writeStatus(w http.ResponseWriter, code int, reason, name string) {
	status := map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
		"message": reason,
	}
	if name != "" {
		status["details"] = map[string]any{"name": name}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	writeJSON(w, status)
}

func writeJSON(w http.ResponseWriter, v any) {
	raw, _ := json.Marshal(v) // it is made of what can be
	_, _ = w.Write(raw)
}

func (s *Server) get(w http.ResponseWriter, in request) {
	s.mu.Lock()
	s.usage.Gets++
	o := s.objects[in.resource][in.namespace+"/"+in.name]
	s.mu.Unlock()
	if o == nil {
		writeStatus(w, http.StatusNotFound, "NotFound", in.name)
		return
	}
	_, _ = w.Write(o.raw)
}

func (in *request) selects(o *object) bool {
	return (in.namespace == "" || in.namespace == o.namespace) &&
		in.fields.Matches(o.fields) && in.labels.Matches(o.labels)
}

// selected returns the selected objects, sorted, and the present version.
func (s *Server) selected(in *request) (selected []*object, version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects[in.resource] {
		if in.selects(o) {
			selected = append(selected, o)
		}
	}
	slices.SortFunc(selected, func(a, b *object) int {
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	return selected, s.version
}

func (s *Server) list(w http.ResponseWriter, in request) {
	s.mu.Lock()
	s.usage.Lists++
	s.mu.Unlock()
	selected, version := s.selected(&in)
	metadata := map[string]any{"resourceVersion": itoa(version)}
	selected = selected[min(in.skip, len(selected)):]
	if in.limit > 0 && len(selected) > in.limit {
		selected = selected[:in.limit]
		metadata["continue"] = itoa(in.skip + in.limit)
	}
	items := []json.RawMessage{}
	for _, o := range selected {
		items = append(items, o.raw)
	}
	writeJSON(w, map[string]any{"kind": "List", "metadata": metadata, "items": items})
}

// watch sends the events after the client's resource version.
func (s *Server) watch(ctx context.Context, w http.ResponseWriter, in request) {
	from, _ := strconv.Atoi(in.from)
	s.mu.Lock()
	if in.initial && s.listsOnly {
		s.mu.Unlock()
		writeStatus(w, http.StatusUnprocessableEntity, "Invalid", "")
		return
	}
	s.usage.Watches++
	s.usage.Open++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.usage.Open--
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(ctx, in.timeout)
	defer cancel()
	bookmark := time.NewTimer(untilBookmark(in.timeout))
	defer bookmark.Stop()
	begun := time.Now()
	w.WriteHeader(http.StatusOK)
	if in.initial {
		from = s.sendInitial(w, &in)
	}
	for {
		pending, expired, ends, changed := s.since(from, in)
		if expired {
			writeJSON(w,
				map[string]any{"type": "ERROR", "object": map[string]any{"kind": "Status", "code": 410, "reason": "Expired"}})
			return
		}
		s.mu.Lock()
		s.usage.Events += len(pending)
		s.mu.Unlock()
		for _, e := range pending {
			writeJSON(w, map[string]any{"type": e.kind, "object": e.object.raw})
			from = e.object.version
		}
		w.(http.Flusher).Flush()
		if ends {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-bookmark.C:
			from = s.bookmark(w, in, from)
			bookmark.Reset(untilBookmark(in.timeout - time.Since(begun)))
		}
	}
}

// sendInitial sends all selected objects and the bookmark that ends them, and returns the resulting
// version of the client.
func (s *Server) sendInitial(w http.ResponseWriter, in *request) int {
	selected, version := s.selected(in)
	for _, o := range selected {
		writeJSON(w, map[string]any{"type": "ADDED", "object": o.raw})
	}
	writeJSON(w, map[string]any{"type": "BOOKMARK", "object": map[string]any{"metadata": map[string]any{
		"resourceVersion": itoa(version), "annotations": map[string]any{"k8s.io/initial-events-end": "true"},
	}}})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.usage.Streamed++
	return version
}

// untilBookmark returns the time until the next bookmark of a watch, given its remaining time: a
// minute, and shortly before its end (k8s.io/apiserver pkg/storage/cacher, nextBookmarkTime).
func untilBookmark(left time.Duration) time.Duration {
	const every, before = time.Minute, 2 * time.Second
	if last := left - before; last > 0 && last < every {
		return last
	}
	return every
}

// bookmark sends a bookmark with the present version, unless events wait to be sent, and returns
// the resulting version of the client.
func (s *Server) bookmark(w http.ResponseWriter, in request, from int) int {
	s.mu.Lock()
	version := s.version
	s.mu.Unlock()
	if pending, _, _, _ := s.since(from, in); !in.bookmarks || len(pending) > 0 {
		return from
	}
	object := map[string]any{
		"kind": "Pod", "apiVersion": "v1",
		"metadata": map[string]any{"resourceVersion": itoa(version)}, "spec": nil, "status": nil,
	}
	writeJSON(w, map[string]any{"type": "BOOKMARK", "object": object})
	return version
}

// since returns the events after a version, whether the version is too old, and whether watches end
// now because of a fault or because their API version is no longer served.
func (s *Server) since(from int, in request) (pending []event, expired, ends bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.resource != in.resource || e.object.version <= from {
			continue
		}
		if e, ok := e.seenBy(&in); ok {
			pending = append(pending, e)
		}
	}
	ends = s.fault != nil && s.fault(in.resource, true) != None || len(s.versions) == 0 && in.resource != Pods ||
		slices.Contains(s.lacking[in.resource], in.version)
	return pending, from < s.oldest, ends, s.changed
}

// seenBy returns an event as a watch receives it, false if it does not: for a watch, an object that
// its selector no longer selects is deleted.
func (e event) seenBy(in *request) (event, bool) {
	before, after := e.before != nil && in.selects(e.before), e.kind != deleted && in.selects(e.object)
	switch {
	case before && !after:
		e.kind = deleted
	case before:
		e.kind = "MODIFIED"
	default:
		e.kind = "ADDED"
	}
	return e, before || after
}

// countingWriter counts the bytes of answers.
type countingWriter struct {
	http.ResponseWriter
	server *Server
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.server.mu.Lock()
	w.server.usage.Bytes += len(p)
	w.server.mu.Unlock()
	return w.ResponseWriter.Write(p)
}

func (w *countingWriter) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

// May reports what a user may do.
type May func(authorizationv1.SubjectAccessReviewSpec) bool

// Allow sets what a user may do; nil: there is no such user. The user's token is the user's name.
// May also applies to users that headers name.
func (s *Server) Allow(user string, may May) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == nil {
		s.users = map[string]May{}
	}
	if s.users[user] = may; may == nil {
		delete(s.users, user)
	}
}

// apiAudience is the audience of tokens for the API server.
const apiAudience = "https://kubernetes.default.svc"

// Token returns a token of a user for an audience, as the API server makes them for pods.
func Token(user, audience string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte("{}")) + "." + part(fmt.Appendf(nil, `{"sub":%q,"aud":[%q]}`, user, audience)) + "."
}

// parseToken returns the user and the audience of a token. One that [Token] has not made is the
// name of a user.
func parseToken(token string) (user, audience string) {
	var claims struct {
		Subject  string   `json:"sub"`
		Audience []string `json:"aud"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return token, apiAudience
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil || len(claims.Audience) != 1 {
		return token, apiAudience
	}
	return claims.Subject, claims.Audience[0]
}

// review answers a TokenReview or a SubjectAccessReview. The client itself may do everything, and
// Events are taken, but not kept.
func (s *Server) review(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	switch {
	case strings.Contains(r.URL.Path, "/events"):
		_, _ = io.Copy(w, r.Body)
		return
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		_, _ = io.WriteString(w, `{"status": {"allowed": true}}`)
		return
	}
	may := func(user string) May {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.users[user]
	}
	if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review) // it is the client's
		user, audience := parseToken(review.Spec.Token)
		asked := review.Spec.Audiences
		if len(asked) == 0 {
			asked = []string{apiAudience}
		}
		if may(user) != nil && slices.Contains(asked, audience) {
			review.Status.Authenticated, review.Status.User.Username = true, user
			review.Status.Audiences = []string{audience}
		}
		writeJSON(w, review)
		return
	}
	var review authorizationv1.SubjectAccessReview
	_ = json.NewDecoder(r.Body).Decode(&review)
	if allowed := may(review.Spec.User); allowed != nil {
		review.Status.Allowed = allowed(review.Spec)
	}
	writeJSON(w, review)
}
