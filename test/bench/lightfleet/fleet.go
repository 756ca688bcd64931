package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

// syncedWithin is the longest time until all agents are in sync.
const syncedWithin = 10 * time.Minute

type config struct {
	addr, pki                   string
	protocol                    int
	agents, first, works, bytes int
	perAddress                  int // agents behind one IP address; 0: all
}

// fleet is the source and all agents.
type fleet struct {
	config
	agents  []*agent
	ids     atomic.Int64 // counts events
	version atomic.Int32 // of the last update
	traffic *traffic     // nil before the first one

	mu sync.Mutex
	// marked is the start of the measured time. took has the time from it until each agent was in sync. all is
	// closed when every agent was. watched: the times are of agents that lost their broker after the mark.
	marked  time.Time
	took    []time.Duration
	all     chan struct{}
	watched bool
	lost    error // why the last connection ended
}

func newFleet(c config) (*fleet, error) {
	f := &fleet{config: c}
	f.version.Store(1)
	for i := range c.agents {
		cluster := fmt.Sprintf("bench-%d", c.first+i)
		if err := certify(pki.Dir(c.pki), cluster); err != nil {
			return nil, err
		}
		a, err := f.newAgent(cluster, c.first+i)
		if err != nil {
			return nil, err
		}
		f.agents = append(f.agents, a)
	}
	return f, nil
}

// certify writes the certificate of an agent, unless an earlier run did. It does not sync the files, because
// thousands of them would take minutes.
func certify(d pki.Dir, cluster string) error {
	cert, key := d.Cert(pki.Agent, cluster), d.Key(pki.Agent, cluster)
	if _, err := os.Stat(key); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ca, err := d.Authority()
	if err != nil {
		return err
	}
	pair, err := ca.Issue(pki.Request{Role: pki.Agent, Name: cluster, Valid: pki.Starting(time.Now(), 24*time.Hour)})
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(cert, pair.CertPEM, 0o600), os.WriteFile(key, pair.KeyPEM, 0o600))
}

// handler serves the commands. Each is a POST that ends when the command is done. The answer is the list of the
// measured times, in nanoseconds.
//
//	load     publishes all works
//	start    marks, and starts all agents, ?rate= a second; without it all at once
//	mark     begins the measured time of the next synced
//	synced   waits until all agents are in sync on a subscription after the mark; the times since the mark
//	update   publishes a new version of one work of each of the first ?clusters= clusters, ?rounds= times; the times
//	         from each publish to its delivery
//	watch    begins the measured time of returned
//	returned the times since watch at which agents that have lost their broker were in sync again, so far
//	traffic  begins to publish new versions, ?rate= a second
//	accepted ends the traffic, and waits until each agent has the last accepted version; the times of the publishes
func (f *fleet) handler() http.Handler {
	m := http.NewServeMux()
	for path, execute := range map[string]func(*http.Request) ([]time.Duration, error){
		"load": func(r *http.Request) ([]time.Duration, error) { return nil, f.load(r.Context()) },
		"start": func(r *http.Request) ([]time.Duration, error) {
			perSecond, err := strconv.Atoi(cmp.Or(r.FormValue("rate"), "0"))
			f.start(context.WithoutCancel(r.Context()), perSecond)
			return nil, err
		},
		"mark": func(*http.Request) ([]time.Duration, error) {
			f.mark(false)
			return nil, nil
		},
		"watch": func(*http.Request) ([]time.Duration, error) {
			f.mark(true)
			return nil, nil
		},
		"returned": func(*http.Request) ([]time.Duration, error) { return f.returned(), nil },
		"traffic": func(r *http.Request) ([]time.Duration, error) {
			rate, err := strconv.Atoi(r.FormValue("rate"))
			if err != nil {
				return nil, err
			}
			return nil, f.beginTraffic(context.WithoutCancel(r.Context()), rate)
		},
		"accepted": func(r *http.Request) ([]time.Duration, error) { return f.endTraffic(r.Context()) },
		"synced":   func(r *http.Request) ([]time.Duration, error) { return f.synced(r.Context()) },
		"update": func(r *http.Request) ([]time.Duration, error) {
			clusters, err := strconv.Atoi(r.FormValue("clusters"))
			rounds, err2 := strconv.Atoi(r.FormValue("rounds"))
			if err := errors.Join(err, err2); err != nil {
				return nil, err
			}
			return f.update(r.Context(), min(clusters, len(f.agents)), rounds)
		},
	} {
		m.HandleFunc("POST /"+path, func(w http.ResponseWriter, r *http.Request) {
			took, err := execute(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			_ = json.NewEncoder(w).Encode(took) // the benchmark may have ended
		})
	}
	return m
}

// start starts so many agents per second, or all at once if that is 0. They run until ctx ends.
func (f *fleet) start(ctx context.Context, perSecond int) {
	f.mark(false)
	for i, a := range f.agents {
		go func() {
			if perSecond > 0 {
				<-time.After(time.Duration(i) * time.Second / time.Duration(perSecond))
			}
			if err := a.session.Run(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err) // the configuration is invalid; synced never ends
			}
		}()
	}
}

// mark begins the measured time: of all agents, or if watched of those that lose their broker from now on.
func (f *fleet) mark(watched bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marked, f.took, f.all, f.watched = time.Now(), nil, make(chan struct{}), watched
	for _, a := range f.agents {
		a.proven = watched
	}
}

// returned returns the times of the agents that have come back, in order.
func (f *fleet) returned() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.took)
}

// inSync records that the broker accepted an ack with an equal digest. An ack on a subscription from before the
// mark does not count: a killed broker may have accepted it.
func (f *fleet) inSync(a *agent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.proven || a.subscribed.Before(f.marked) {
		return
	}
	a.proven = true
	f.took = append(f.took, time.Since(f.marked))
	if len(f.took) == len(f.agents) && !f.watched {
		close(f.all)
	}
}

func (f *fleet) disconnected(a *agent, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = err
	if f.watched {
		a.proven = false
	}
}

// synced waits until all agents are in sync. It returns the times, in order.
func (f *fleet) synced(ctx context.Context) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, syncedWithin)
	defer cancel()
	f.mu.Lock()
	all := f.all
	f.mu.Unlock()
	select {
	case <-all:
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%d of %d agents are in sync: %w; a connection ended because of: %w", len(f.took), len(f.agents), err, f.lost)
	}
	return f.took, nil
}

func (f *fleet) newID() string { return strconv.FormatInt(f.ids.Add(1), 10) }
