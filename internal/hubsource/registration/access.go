package registration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

const (
	// accessHolds is for how long an answer of the hub counts.
	accessHolds = 10 * time.Second
	// maxAccess is how many answers are kept.
	maxAccess = 10_000
)

// access asks the hub whether somebody may do something.
type access struct {
	reviews authorizationclient.SubjectAccessReviewInterface

	mu   sync.Mutex
	kept map[question]verdict
}

// question is what was asked.
type question struct {
	user, groups                                          string
	verb, group, resource, subresource, namespace, object string
}

type verdict struct {
	allowed bool
	until   time.Time
}

func newAccess(reviews authorizationclient.SubjectAccessReviewInterface) *access {
	return &access{reviews: reviews, kept: map[question]verdict{}}
}

// review returns nil if the hub lets who asks do it; else the refusal, or why the hub did not say.
func (x *access) review(ctx context.Context, a ask) error {
	r := attributes(a)
	q := question{a.user, strings.Join(a.groups, "\n"), r.Verb, r.Group, r.Resource, r.Subresource, r.Namespace, r.Name}
	allowed, known := x.known(q, time.Now())
	if !known {
		answer, err := x.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: a.user, Groups: a.groups, ResourceAttributes: &r},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("review of the rights of %s: %w", a.user, err)
		}
		allowed = answer.Status.Allowed
		x.keep(q, verdict{allowed, time.Now().Add(accessHolds)})
	}
	if !allowed {
		return a.forbidden("the hub does not let %s %s it", a.user, r.Verb)
	}
	return nil
}

func (x *access) known(q question, now time.Time) (allowed, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	v, ok := x.kept[q]
	return v.allowed, ok && now.Before(v.until)
}

func (x *access) keep(q question, v verdict) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.kept) >= maxAccess {
		clear(x.kept) // they are ten seconds old at most
	}
	x.kept[q] = v
}
