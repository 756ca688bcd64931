package kubeconfig

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
)

// Check checks whether a program can work with its kube-apiserver: whether the server answers, serves the
// needed resources, and allows the needed verbs.
type Check struct {
	// Name is the name of the first step, such as "hub API".
	Name string
	// Load returns the client configuration.
	Load func() (*rest.Config, error)
	// Definitions: one of them has to be served. If it is empty, there is no such step.
	Definitions []schema.GroupVersionResource
	// Rights are the rights that the program needs, on served definitions. Grant is advice how to get what is
	// missing.
	Rights []Right
	Grant  string
}

// Right is a set of verbs on a resource.
type Right struct {
	Verbs                              []string
	Group, Resource, Namespace, Object string // Resource may end in /SUBRESOURCE
}

// Step is one check. A Hint of its error is advice for the operator.
type Step struct {
	Name string
	Look func(context.Context) (found string, err error)
}

// Steps returns the steps. Run them in order, until one fails.
func (c Check) Steps() []Step {
	l := &look{Check: c}
	steps := []Step{{c.Name, l.reach}, {"definitions", l.definitions}, {"rights", l.rights}}
	if len(c.Definitions) == 0 {
		steps = slices.Delete(steps, 1, 2)
	}
	return steps
}

// look is the state that the steps of a Check share.
type look struct {
	Check
	host string
	// absent are the definitions that are not served.
	absent map[schema.GroupResource]bool
	auth   authenticationclient.AuthenticationV1Interface
	may    authorizationclient.AuthorizationV1Interface
}

// problem is an error with advice.
type problem struct {
	err    error
	what   string
	advice string
}

func (p *problem) Error() string { return p.what }
func (p *problem) Unwrap() error { return p.err }
func (p *problem) Hint() string  { return p.advice }

func wrong(err error, advice, format string, args ...any) error {
	return &problem{err: err, what: fmt.Sprintf(format, args...), advice: advice}
}

// reach reads the version of the server, and the user of the program.
func (l *look) reach(ctx context.Context) (string, error) {
	cfg, err := l.Load()
	if err != nil {
		return "", err
	}
	l.host = cfg.Host
	if l.auth, err = authenticationclient.NewForConfig(cfg); err != nil {
		return "", err
	}
	if l.may, err = authorizationclient.NewForConfig(cfg); err != nil {
		return "", err
	}
	var v version.Info
	if err := l.get(ctx, "/version", &v); err != nil {
		return "", l.explain(err)
	}
	review, err := l.auth.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsNotFound(err): // before Kubernetes 1.28
		return fmt.Sprintf("%s runs Kubernetes %s", l.host, v.GitVersion), nil
	case err != nil && !apierrors.IsForbidden(err): // Forbidden is the answer to an anonymous client
		return "", l.explain(err)
	case err != nil || review.Status.UserInfo.Username == "system:anonymous":
		return "", wrong(err, "put a token or a client certificate into the kubeconfig", "%s answers, but cannot identify us: the kubeconfig has no credentials", l.host)
	}
	return fmt.Sprintf("%s runs Kubernetes %s, and knows us as %s", l.host, v.GitVersion, review.Status.UserInfo.Username), nil
}

func (l *look) get(ctx context.Context, path string, into any) error {
	text, err := l.may.RESTClient().Get().AbsPath(path).Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// explain returns an error that explains what prevents a request to the kube-apiserver.
func (l *look) explain(err error) error {
	var (
		name    *net.DNSError
		signer  x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	switch {
	case apierrors.IsUnauthorized(err):
		return wrong(err, "the token or the client certificate has expired, or is of another cluster: get a new one", "%s does not accept our credentials", l.host)
	case errors.As(err, &signer):
		by := "an unknown CA"
		if signer.Cert != nil {
			by = fmt.Sprintf("%q", signer.Cert.Issuer.String())
		}
		return wrong(err, "put its CA into the kubeconfig; if that is not its CA, something on the way inspects TLS", "the certificate of %s is signed by %s, which the kubeconfig does not have", l.host, by)
	case errors.As(err, &host):
		return wrong(err, "use one of its names, or tls-server-name in the kubeconfig", "the certificate of %s is not for it: %v", l.host, host)
	case errors.As(err, &invalid):
		return wrong(err, "renew it, or set the clock of this machine, with NTP", "the certificate of %s is not valid: %v", l.host, invalid)
	case errors.As(err, &name):
		return wrong(err, "check the server in the kubeconfig, and DNS", "the name of %s is not found: %v", l.host, name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return wrong(err, "check the server in the kubeconfig, and that the kube-apiserver runs", "no program listens at %s", l.host)
	case errors.Is(err, context.DeadlineExceeded):
		return wrong(err, "check the kube-apiserver; if it is healthy, ask the network team what on the way drops the connection", "%s did not answer in time", l.host)
	}
	return wrong(err, "check the server in the kubeconfig, and that the kube-apiserver runs", "the request to %s failed: %v", l.host, err)
}

// definitions checks whether the resources are served.
func (l *look) definitions(ctx context.Context) (string, error) {
	var names, there []string
	l.absent = map[schema.GroupResource]bool{}
	for _, d := range l.Definitions {
		var served metav1.APIResourceList
		if err := l.get(ctx, "/apis/"+d.GroupVersion().String(), &served); err != nil && !apierrors.IsNotFound(err) {
			return "", l.explain(err)
		}
		name := fmt.Sprintf("%s, %s", d.GroupResource(), d.Version)
		names = append(names, name)
		if slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == d.Resource }) {
			there = append(there, name)
		} else {
			l.absent[d.GroupResource()] = true
		}
	}
	if len(there) == 0 {
		return "", wrong(nil, l.Grant, "%s does not serve %s: the CustomResourceDefinition is missing", l.host, strings.Join(names, ", or "))
	}
	return strings.Join(there, "; ") + ": served", nil
}

// rights checks each right.
func (l *look) rights(ctx context.Context) (string, error) {
	var missing []string
	count := 0
	for _, r := range l.Rights {
		if l.absent[schema.GroupResource{Group: r.Group, Resource: r.Resource}] {
			continue
		}
		var verbs []string
		for _, verb := range r.Verbs {
			count++
			allowed, err := l.allowed(ctx, r, verb)
			if err != nil {
				return "", l.explain(err)
			}
			if !allowed {
				verbs = append(verbs, verb)
			}
		}
		if len(verbs) > 0 {
			missing = append(missing, strings.Join(verbs, ", ")+" "+r.what())
		}
	}
	if len(missing) > 0 {
		return "", wrong(nil, l.Grant, "%s does not let us %s", l.host, strings.Join(missing, "; "))
	}
	return fmt.Sprintf("all %d that are needed", count), nil
}

func (l *look) allowed(ctx context.Context, r Right, verb string) (bool, error) {
	resource, subresource, _ := strings.Cut(r.Resource, "/")
	review, err := l.may.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: r.Group, Resource: resource, Subresource: subresource, Namespace: r.Namespace, Name: r.Object,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// what describes the objects of the right.
func (r Right) what() string {
	s := r.Resource
	if r.Group != "" {
		s += " of " + r.Group
	}
	if r.Object != "" {
		s += " " + r.Object
	}
	if r.Namespace != "" {
		s += " in namespace " + r.Namespace
	}
	return s
}
