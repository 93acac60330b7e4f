package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
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
	request := c.rest.Get().AbsPath(path).MaxRetries(0)
	for name, values := range query {
		for _, value := range values {
			request.Param(name, value)
		}
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", path, err)
	}
	return body, nil
}

// Post opens the response to a POST of a JSON object to path. Errors, which have a method Reason
// for a label, and closing are as for Get.
func (c *Client) Post(ctx context.Context, path string, object []byte) (io.ReadCloser, error) {
	body, err := c.rest.Post().AbsPath(path).MaxRetries(0).Body(object).Stream(ctx)
	if err != nil {
		return nil, withReason(fmt.Errorf("post %s: %w", path, err))
	}
	return body, nil
}

// Patch opens the response to a JSON merge patch (RFC 7386) of the object at path. Errors and
// closing are as for Post.
func (c *Client) Patch(ctx context.Context, path string, patch []byte) (io.ReadCloser, error) {
	body, err := c.rest.Patch(types.MergePatchType).AbsPath(path).MaxRetries(0).Body(patch).Stream(ctx)
	if err != nil {
		return nil, withReason(fmt.Errorf("patch %s: %w", path, err))
	}
	return body, nil
}
