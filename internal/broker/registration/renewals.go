package registration

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// renewalsAtOnce is how many renewals go to the source in one request, renewalPause the time
	// between two requests.
	renewalsAtOnce = 1000
	renewalPause   = time.Second
)

// pendingLeaseRenewals are the Leases that agents have renewed and the source does not know of: of each cluster
// the last one. There are no more than clusters that the hub has accepted.
type pendingLeaseRenewals struct {
	mu      sync.Mutex
	waiting map[string]came
}

// came is when a renewal came, and when the certificate was issued with which it came.
type came struct{ at, issued time.Time }

// stamp is a time as the source is told it; zero is none.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// note notes a renewal; first: nothing waited.
func (r *pendingLeaseRenewals) note(cluster string, at came) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = map[string]came{}
	}
	first = len(r.waiting) == 0
	if was := r.waiting[cluster]; was.issued.After(at.issued) {
		at.issued = was.issued // it came too
	}
	r.waiting[cluster] = at
	return first
}

// forget forgets that of a cluster.
func (r *pendingLeaseRenewals) forget(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, cluster)
}

// take returns a request with what waits, nil if nothing does.
func (r *pendingLeaseRenewals) take(now time.Time) *hawserv1.RegistrationRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return nil
	}
	all := &hawserv1.LeaseRenewals{}
	for cluster, at := range r.waiting {
		if len(all.Renewals) == renewalsAtOnce {
			break
		}
		delete(r.waiting, cluster)
		all.Renewals = append(all.Renewals, &hawserv1.LeaseRenewal{Cluster: cluster, Age: durationpb.New(now.Sub(at.at)), Issued: stamp(at.issued)})
	}
	return &hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Renewals{Renewals: all}}
}

// size returns how many wait.
func (r *pendingLeaseRenewals) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}
