package registration

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// renewalsAtOnce is how many renewals go to the source in one request, renewalPause the time
	// between two requests.
	renewalsAtOnce = 1000
	renewalPause   = time.Second
)

// renewals are the Leases that agents have renewed and the source does not know of: of each cluster
// the last one. There are no more than clusters that the hub has accepted.
type renewals struct {
	mu      sync.Mutex
	waiting map[string]time.Time // when it came
}

// note notes a renewal; first: nothing waited.
func (r *renewals) note(cluster string, at time.Time) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = map[string]time.Time{}
	}
	first = len(r.waiting) == 0
	r.waiting[cluster] = at
	return first
}

// forget forgets that of a cluster.
func (r *renewals) forget(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, cluster)
}

// take returns a request with what waits, nil if nothing does.
func (r *renewals) take(now time.Time) *hawserv1.RegistrationRequest {
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
		all.Renewals = append(all.Renewals, &hawserv1.LeaseRenewal{Cluster: cluster, Age: durationpb.New(now.Sub(at))})
	}
	return &hawserv1.RegistrationRequest{What: &hawserv1.RegistrationRequest_Renewals{Renewals: all}}
}

// size returns how many wait.
func (r *renewals) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}
