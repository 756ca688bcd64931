package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
)

// syncedWithin is the longest time until all agents are in sync.
const syncedWithin = 10 * time.Minute

type config struct {
	addr, pki            string
	protocol             int
	agents, works, bytes int
}

// fleet is the source and all agents.
type fleet struct {
	config
	agents  []*agent
	ids     atomic.Int64 // counts events
	version atomic.Int32 // of the last update

	mu sync.Mutex
	// marked is the start of the measured time. took has the time from it until each agent was in sync. all is
	// closed when every agent was.
	marked time.Time
	took   []time.Duration
	all    chan struct{}
	lost   error // why the last connection ended
}

func newFleet(c config) (*fleet, error) {
	f := &fleet{config: c}
	f.version.Store(1)
	for i := range c.agents {
		cluster := fmt.Sprintf("bench-%d", i)
		if err := certify(pki.Dir(c.pki), cluster); err != nil {
			return nil, err
		}
		a, err := f.newAgent(cluster)
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
//	start    marks, and starts all agents
//	mark     begins the measured time of the next synced
//	synced   waits until all agents are in sync on a subscription after the mark; the times since the mark
//	update   publishes a new version of one work of each of the first ?clusters= clusters, ?rounds= times; the times
//	         from each publish to its delivery
func (f *fleet) handler() http.Handler {
	m := http.NewServeMux()
	for path, execute := range map[string]func(*http.Request) ([]time.Duration, error){
		"load": func(r *http.Request) ([]time.Duration, error) { return nil, f.load(r.Context()) },
		"start": func(r *http.Request) ([]time.Duration, error) {
			f.start(context.WithoutCancel(r.Context()))
			return nil, nil
		},
		"mark": func(*http.Request) ([]time.Duration, error) {
			f.mark()
			return nil, nil
		},
		"synced": func(r *http.Request) ([]time.Duration, error) { return f.synced(r.Context()) },
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

// start starts all agents. They run until ctx ends.
func (f *fleet) start(ctx context.Context) {
	f.mark()
	for _, a := range f.agents {
		go func() {
			if err := a.session.Run(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err) // the configuration is invalid; synced never ends
			}
		}()
	}
}

func (f *fleet) mark() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marked, f.took, f.all = time.Now(), nil, make(chan struct{})
	for _, a := range f.agents {
		a.proven = false
	}
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
	if len(f.took) == len(f.agents) {
		close(f.all)
	}
}

func (f *fleet) disconnected(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = err
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
