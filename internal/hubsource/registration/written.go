package registration

import (
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/codec"
)

var (
	// bytesRate limits the bytes that one accepted cluster may have written on the hub: Events, statuses, CSRs and
	// tokens. A klusterlet with 20 add-ons begins with less than 200 KiB, and goes on with 2 KiB a second.
	bytesRate = fair.Rate{PerSecond: 8 << 10, Burst: 1 << 20}
	// eventsRate limits the Events that one accepted cluster may have written; the hub keeps them for an hour. A
	// klusterlet that switches between available and unavailable all the time sends six in a minute.
	eventsRate = fair.Rate{PerSecond: 0.2, Burst: 60}
)

// perWrite is the cost of a write besides its bytes, in bytes.
const perWrite = 2 << 10

// written holds the recent write budgets of a cluster.
type written struct{ bytes, events fair.Bucket }

// spend takes the cost of a call from the budgets, or refuses the call. An accepted cluster has a budget of
// writes. Objects that wait for a decision have limits of their own.
func (s *Server) spend(a agentRequest, c call, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !a.bootstrap && s.cluster(a.cluster).accepted() {
		w := s.written[a.cluster]
		if w == nil {
			if s.written == nil {
				s.written = map[string]*written{}
			}
			w = &written{}
			s.written[a.cluster] = w
		}
		cost := float64(c.bytes + perWrite)
		if !w.bytes.Spend(bytesRate, now, cost) {
			return tooFast(a, bytesRate, "bytes", cost)
		}
		if a.what.DataType == codec.KubeEvents && !w.events.Spend(eventsRate, now, 1) {
			return tooFast(a, eventsRate, "Events", 1)
		}
	}
	o := &object{bytes: c.bytes, requestedBy: requester{cluster: a.cluster}, account: a.user, undecided: true}
	addOn, _, _ := unstructured.NestedString(c.object, "metadata", "labels", ocm.AddOnLabel) // "" for other objects
	switch {
	case c.verb != create || a.what.DataType != codec.ManagedClusters && a.what.DataType != codec.SigningRequests:
		return nil
	case a.what.DataType == codec.SigningRequests:
		o.requestedBy = requesterOf(a.cluster, a.user, addOn)
	}
	s.undecided.expire(now)
	if err := s.undecided.capacityOf(a).takes(a, addOn != "", c.bytes, s.cfg.MaxPending); err != nil {
		return err
	}
	s.undecided.hold(made{a.what.DataType, c.name}, o, now)
	return nil
}

// spent handles the answer of the hub. A refused object was not created. Without an answer the outcome is
// unknown, and the object stays counted.
func (s *Server) spent(a agentRequest, err error) {
	if refused := apierrors.APIStatus(nil); err != nil && errors.As(err, &refused) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.undecided.release(made{a.what.DataType, a.sent.Metadata.Name})
	}
}

func tooFast(a agentRequest, r fair.Rate, what string, cost float64) error {
	wait := int(math.Ceil(cost / r.PerSecond))
	return apierrors.NewTooManyRequests(fmt.Sprintf("cluster %s has too many %s written on the hub, at most %g at once and then %g a second. Send fewer, and try again in %d s",
		a.cluster, what, r.Burst, r.PerSecond, wait), wait)
}
