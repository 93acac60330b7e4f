package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
)

// ErrNoCluster says that there is neither a kubeconfig nor a service account's token: the program runs outside of a
// cluster, or without leave to ask.
var ErrNoCluster = errors.New("not in a cluster, and no kubeconfig given")

// API is what is asked of the API server: [Client] is the one, and the only one that a program makes.
type API interface {
	// Get opens the answer to a GET of path; what it can not get is an error of k8s.io/apimachinery/pkg/api/errors or
	// of the transport. Whoever gets an answer closes it.
	Get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error)
}

// Client asks the API server, with the credentials of a kubeconfig or of the service account. Tokens that are
// renewed on the disk are read again within a minute, and at once after they were refused. It holds one connection, which all requests share.
type Client struct {
	rest *rest.RESTClient
	host string
}

var _ API = (*Client)(nil)

// NewClient returns the client of the cluster that the kubeconfig names, or, where it is "", of the one that the program
// runs in. It does not connect. Outside of a cluster the error is [ErrNoCluster].
func NewClient(kubeconfig, userAgent string) (*Client, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.UserAgent = userAgent
	return newClient(config)
}

func newClient(config *rest.Config) (*Client, error) {
	rereadToken(config)
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // Status, which is what errors come as
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.ContentType = runtime.ContentTypeJSON
	config.QPS = -1 // the rate is bounded by who asks: watches last, and claims have a budget of their own
	config.WarningHandler = rest.NoWarnings{}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make API client: %w", err)
	}
	return &Client{rest: client, host: config.Host}, nil
}

// rereadToken has a token that is refused read from its file again before the next request. By itself client-go reads the file once
// a minute, whatever the API server says of the token (transport.NewBearerAuthWithRefreshRoundTripper).
func rereadToken(config *rest.Config) {
	if config.BearerTokenFile == "" {
		return
	}
	config.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(config.BearerTokenFile)))
	config.BearerToken, config.BearerTokenFile = "", ""
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

// Get implements [API]. It does not try again, not even when the server says when to: whoever asks does.
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

// Post opens the answer to a POST of a JSON object to path. Errors, and whoever closes the answer, are as of Get.
func (c *Client) Post(ctx context.Context, path string, object []byte) (io.ReadCloser, error) {
	body, err := c.rest.Post().AbsPath(path).MaxRetries(0).Body(object).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("post %s: %w", path, err)
	}
	return body, nil
}
