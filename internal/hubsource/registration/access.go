package registration

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

const (
	// accessHolds is how long an answer of the hub is valid.
	accessHolds = 10 * time.Second
	// maxAccess is how many answers are kept.
	maxAccess = 10_000
)

// AccessReviews decides whether the hub reviews the access of each request.
type AccessReviews string

// Values of AccessReviews.
const (
	Never  AccessReviews = "false"
	Always AccessReviews = "true"
	// Auto is Always while the registration controllers of Open Cluster Management are found on the hub, or while
	// that is unknown. Otherwise it is Never.
	Auto AccessReviews = "auto"
)

const (
	// lookForOCM is the pause between two searches for the controllers, lookForOCMAgain the one after a failed
	// search.
	lookForOCM      = 5 * time.Minute
	lookForOCMAgain = 15 * time.Second
)

// access requests access reviews from the hub.
type access struct {
	reviews authorizationclient.SubjectAccessReviewInterface
	find    func(ctx context.Context) (string, error) // nil unless AccessReviews is Auto
	log     *slog.Logger
	enabled atomic.Bool

	mu   sync.Mutex
	kept map[question]accessResult
}

// question identifies one access review.
type question struct {
	user, groups                                          string
	verb, group, resource, subresource, namespace, object string
}

type accessResult struct {
	allowed bool
	until   time.Time
}

func newAccess(c Config) *access {
	x := &access{reviews: c.Hub.Reviews, log: c.Log, kept: map[question]accessResult{}}
	if c.AccessReviews == Auto {
		x.find = c.FindOCM
	}
	x.enabled.Store(c.AccessReviews == Always || c.AccessReviews == Auto)
	return x
}

// Run checks regularly whether access reviews are needed, until ctx ends.
func (x *access) Run(ctx context.Context) error {
	for x.find != nil {
		wait := lookForOCM
		shownBy, err := x.find(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was asked to stop
		case err != nil:
			wait = lookForOCMAgain
			x.log.WarnContext(ctx, "it is unknown whether the registration controllers of Open Cluster Management run on the hub; access reviews stay as before until it is known", "err", err, "requested", x.enabled.Load(), "retry_in", wait)
		case x.enabled.Swap(shownBy != "") != (shownBy != ""):
			x.log.InfoContext(ctx, "the use of access reviews for requests of clusters has changed", "requested", shownBy != "", "detected_by", shownBy)
		}
		if !taskgroup.Sleep(ctx, wait) {
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// review returns nil if the hub allows the request, or if no review is needed. Otherwise it returns the
// refusal, or the error of the review.
func (x *access) review(ctx context.Context, a agentRequest) error {
	if !x.enabled.Load() {
		return nil
	}
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
		x.keep(q, accessResult{allowed, time.Now().Add(accessHolds)})
	}
	if !allowed {
		return a.forbidden("the hub does not allow %s to %s it", a.user, r.Verb)
	}
	return nil
}

func (x *access) known(q question, now time.Time) (allowed, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	v, ok := x.kept[q]
	return v.allowed, ok && now.Before(v.until)
}

func (x *access) keep(q question, v accessResult) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.kept) >= maxAccess {
		clear(x.kept) // all of them are ten seconds old at most
	}
	x.kept[q] = v
}
