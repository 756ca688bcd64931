package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/postgres"
	"github.com/hawser-io/hawser/internal/pki"
)

const (
	partReplicas = "replicas"
	// replicaCount is the number of brokers over one database.
	replicaCount = 3
	// agentsPerProcess is less than the number of descriptors of a process, 20,000.
	agentsPerProcess = 10000
	// arrivalRate is the number of agents per second that start, and perAddress the number behind one IP address, if
	// there are several light fleets. All at once would compute on this machine what 30,000 machines compute.
	arrivalRate, perAddress = 200, 100
	// trafficRate is the number of publishes a second, of all light fleets.
	trafficRate = 300
	// quietTime is the duration of the traffic without a fault.
	quietTime = 20 * time.Second
	// elsewhereWithin is the target for the clients of a killed broker, in seconds.
	elsewhereWithin = 15
	// spreadWithin is the longest time until the brokers count all sessions.
	spreadWithin = 2 * time.Minute
)

// replica is one of the brokers.
type replica struct {
	dir, addr, admin string
	process          *childproc.Process // nil before its first start
}

func (r *replica) running() bool {
	if r.process == nil {
		return false
	}
	select {
	case <-r.process.Done():
		return false
	default:
		return true
	}
}

// replicaSet is several brokers over one database, with light fleets.
type replicaSet struct {
	subject
	size
	keys     pki.Dir
	dir      string
	database *postgres.Server
	// brokers has one more than run, for the rolling restart. Clients have the addresses of all.
	brokers []*replica
	fleets  []agents
}

// used is what one program needs: the brokers in their order, and PostgreSQL.
type used struct {
	sessions, memory, cpu float64 // memory in MiB, cpu as a share of one processor
}

// publishTimes are the times of publishes, each from the moment when it is due.
type publishTimes struct{ p50, p99, most time.Duration }

// replicaFigures are the results of the part.
type replicaFigures struct {
	cold, killed         arrivals
	rest, again          []used // at rest: after the cold start, after the rolling restart
	quiet, loss, restart publishTimes
	stops                []time.Duration // of the rolling restart: from SIGTERM to the end of the process
	lost                 int             // sessions of the killed broker
	lossStorm            []used          // from the kill until all are in sync
}

// replicasPart measures three brokers over one database: at rest, after one is killed, and during a rolling restart.
func replicasPart(ctx context.Context, root string, o options, out io.Writer) error {
	now, err := present(ctx, root)
	if err != nil {
		return err
	}
	var f replicaFigures
	if err := withKeys(func(keys pki.Dir) error {
		return withReplicas(ctx, root, &replicaSet{subject: now, size: o.fleet, keys: keys}, func(s *replicaSet) (err error) {
			f, err = s.figures(ctx, o.idle)
			return err
		})
	}); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d agents × %d works of %d bytes at %d brokers over one database, %d publishes a second\n\n", o.fleet.agents, o.fleet.works, workBytes, replicaCount, trafficRate)
	writeMarkdown(out, f.table(o.fleet))
	writeMarkdown(out, f.programs())
	goals := f.goals()
	if goals != nil {
		writeGoals(out, goals)
	}
	if o.check {
		return checkGoals(goals)
	}
	return nil
}

// withReplicas starts database, brokers and light fleets. It ends all of them after measure.
func withReplicas(ctx context.Context, root string, s *replicaSet, measure func(*replicaSet) error) (err error) {
	if s.dir, err = os.MkdirTemp("", "hawser-bench-replicas-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.startDatabase(ctx, root); err != nil {
		return err
	}
	if err := s.startBrokers(ctx); err != nil {
		return err
	}
	if err := s.startFleets(ctx); err != nil {
		return err
	}
	if err := measure(s); err != nil {
		for _, b := range s.brokers {
			if b.running() {
				err = fmt.Errorf("%w\n%s", err, b.process.LogTail())
			}
		}
		return err
	}
	return nil
}

func (s *replicaSet) startDatabase(ctx context.Context, root string) error {
	programs, err := postgres.Fetch(ctx, root, os.Stderr)
	if err != nil {
		return err
	}
	if s.database, err = postgres.Create(ctx, postgres.Config{Programs: programs, Dir: filepath.Join(s.dir, "postgresql")}); err != nil {
		return err
	}
	return s.database.Start(ctx)
}

func (s *replicaSet) startBrokers(ctx context.Context) (err error) {
	for n := range replicaCount + 1 {
		b := &replica{dir: filepath.Join(s.dir, "broker-"+strconv.Itoa(n+1))}
		if b.addr, err = freeAddr(rigHost); err != nil {
			return err
		}
		if b.admin, err = freeAddr(rigHost); err != nil {
			return err
		}
		if err := os.Mkdir(b.dir, 0o700); err != nil {
			return err
		}
		text := brokerConfig(s.keys, b.addr, b.admin, filepath.Join(b.dir, "data")) +
			fmt.Sprintf("store: {engine: postgres, url: %q}\n", s.database.URL(postgres.Superuser))
		if err := os.WriteFile(filepath.Join(b.dir, "broker.yaml"), []byte(text), 0o600); err != nil {
			return err
		}
		s.brokers = append(s.brokers, b)
		if n == replicaCount {
			break
		}
		if err := s.start(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

func (s *replicaSet) start(ctx context.Context, b *replica) (err error) {
	b.process, err = childproc.Start(ctx, childproc.Spec{
		Name: filepath.Base(b.dir), Path: s.brokerPath, Args: []string{"--config", filepath.Join(b.dir, "broker.yaml")},
		LogFile: filepath.Join(b.dir, "log"), Ready: readyAt(b.admin),
	})
	return err
}

func (s *replicaSet) startFleets(ctx context.Context) error {
	var addrs []string
	for _, b := range s.brokers {
		addrs = append(addrs, b.addr)
	}
	for first := 0; first < s.agents; first += agentsPerProcess {
		part := size{agents: min(agentsPerProcess, s.agents-first), works: s.works}
		fleet := lightFleet{subject: s.subject, size: part, keys: s.keys, addr: strings.Join(addrs, ","), dir: s.dir, first: first}
		if s.agents > agentsPerProcess {
			fleet.perAddress = perAddress
		}
		a, err := fleet.start(ctx)
		if err != nil {
			return err
		}
		s.fleets = append(s.fleets, a)
	}
	return nil
}

func (s *replicaSet) stop() error {
	for _, f := range s.fleets {
		f.process.Kill()
	}
	for _, b := range s.brokers {
		if b.running() {
			b.process.Kill()
		}
	}
	if s.database == nil {
		return nil
	}
	return s.database.Stop()
}

// order lets all light fleets execute a command at the same time. It returns all their times.
func (s *replicaSet) order(ctx context.Context, command string, args url.Values) (took []time.Duration, err error) {
	type answer struct {
		took []time.Duration
		err  error
	}
	answers := make(chan answer)
	for _, f := range s.fleets {
		go func() {
			took, err := f.order(ctx, command, args)
			answers <- answer{took, err}
		}()
	}
	for range s.fleets {
		a := <-answers
		took, err = append(took, a.took...), errors.Join(err, a.err)
	}
	return took, err
}

// step is a part of the run.
type step struct {
	name string
	run  func() error
}

// figures measures all figures. Agents in several processes see the loss of a broker and no restarts: their handshakes
// would take longer on this machine than the restarts.
func (s *replicaSet) figures(ctx context.Context, idle time.Duration) (f replicaFigures, err error) {
	steps := []step{
		{"loading", func() error { _, err := s.order(ctx, "load", nil); return err }},
		{"cold start", func() error { return s.coldStart(ctx, &f) }},
		{"rest", func() (err error) { f.rest, err = s.during(ctx, func() error { return pass(ctx, idle) }); return err }},
		{"traffic", func() (err error) {
			f.quiet, err = s.traffic(ctx, func() error { return pass(ctx, quietTime) })
			return err
		}},
		{"loss of a broker", func() (err error) {
			f.loss, err = s.traffic(ctx, func() error { return s.loseOne(ctx, &f) })
			return err
		}},
		{"its return", func() error { return s.start(ctx, s.brokers[0]) }},
		{"rolling restart", func() (err error) {
			f.restart, err = s.traffic(ctx, func() error { return s.restartAll(ctx, &f) })
			return err
		}},
		{"rest again", func() (err error) { f.again, err = s.during(ctx, func() error { return pass(ctx, idle) }); return err }},
	}
	if len(s.fleets) > 1 { // without the return and the restarts
		steps = steps[:5]
	}
	for _, step := range steps {
		fmt.Fprintf(os.Stderr, "bench: %d brokers: %s\n", replicaCount, step.name)
		if err := step.run(); err != nil {
			return f, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return f, nil
}

func (s *replicaSet) coldStart(ctx context.Context, f *replicaFigures) error {
	var rate url.Values
	if s.agents > agentsPerProcess {
		rate = url.Values{"rate": {strconv.Itoa(arrivalRate / len(s.fleets))}}
	}
	if _, err := s.order(ctx, "start", rate); err != nil {
		return err
	}
	took, err := s.order(ctx, "synced", nil)
	if err != nil {
		return err
	}
	f.cold = arrived(cost{}, took)
	return nil
}

// traffic publishes while a step runs.
func (s *replicaSet) traffic(ctx context.Context, step func() error) (t publishTimes, err error) {
	rate := url.Values{"rate": {strconv.Itoa(trafficRate / len(s.fleets))}}
	if _, err := s.order(ctx, "traffic", rate); err != nil {
		return t, err
	}
	err = step()
	took, ended := s.order(ctx, "accepted", nil)
	if err = errors.Join(err, ended); err != nil {
		return t, err
	}
	return publishTimes{p50: percentile(took, 50), p99: percentile(took, 99), most: percentile(took, 100)}, nil
}

// loseOne kills the first broker under traffic, and waits until all its clients are in sync at the others.
func (s *replicaSet) loseOne(ctx context.Context, f *replicaFigures) error {
	sessions, err := s.sessions(ctx, s.brokers[0])
	if err != nil {
		return err
	}
	f.lost = int(sessions)
	if err := pass(ctx, quietTime/4); err != nil {
		return err
	}
	if _, err := s.order(ctx, "watch", nil); err != nil {
		return err
	}
	f.lossStorm, err = s.during(ctx, func() error {
		s.brokers[0].process.Kill()
		var took []time.Duration
		if err := within(ctx, spreadWithin, func() (err error) {
			if took, err = s.order(ctx, "returned", nil); err == nil && len(took) < f.lost {
				err = fmt.Errorf("%d of %d clients of the killed broker are in sync elsewhere", len(took), f.lost)
			}
			return err
		}); err != nil {
			return err
		}
		f.killed = arrived(cost{}, took)
		return nil
	})
	if err != nil {
		return err
	}
	return pass(ctx, quietTime/4)
}

// restartAll replaces all brokers, one after the other, as a Deployment with a surge of one does it.
func (s *replicaSet) restartAll(ctx context.Context, f *replicaFigures) error {
	for n, b := range s.brokers[:replicaCount] {
		if err := s.start(ctx, s.brokers[(n+replicaCount)%len(s.brokers)]); err != nil {
			return err
		}
		began := time.Now()
		if err := b.process.Stop(); err != nil {
			return err
		}
		f.stops = append(f.stops, time.Since(began))
	}
	return within(ctx, spreadWithin, func() error {
		all := 0.0
		for _, b := range s.brokers {
			if !b.running() {
				continue
			}
			n, err := s.sessions(ctx, b)
			if err != nil {
				return err
			}
			all += n
		}
		if int(all) != s.agents {
			return fmt.Errorf("the brokers have %.0f of %d sessions", all, s.agents)
		}
		return nil
	})
}

// within repeats a check until it succeeds.
func within(ctx context.Context, limit time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		if ended := pass(ctx, 50*time.Millisecond); ended != nil {
			return errors.Join(ended, err)
		}
	}
}

func (s *replicaSet) sessions(ctx context.Context, b *replica) (float64, error) {
	return metric(ctx, b.admin, "hawser_broker_subscriptions")
}

// during returns what each broker that runs then, and at last PostgreSQL, needs during a step.
func (s *replicaSet) during(ctx context.Context, step func() error) ([]used, error) {
	before, err := s.spent(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := step(); err != nil {
		return nil, err
	}
	elapsed := time.Since(began).Seconds()
	after, err := s.spent(ctx)
	for i := range after {
		after[i].cpu = max(0, after[i].cpu-before[i].cpu) / elapsed // less than 0 if the process has ended
	}
	return after, err
}

// spent returns memory, and processor seconds since the start, of the brokers that run and of PostgreSQL.
func (s *replicaSet) spent(ctx context.Context) (all []used, err error) {
	for _, b := range s.brokers {
		u := used{}
		if b.running() {
			if u, err = usedBy(b.process.PID()); err != nil {
				return nil, err
			}
			if u.sessions, err = s.sessions(ctx, b); err != nil {
				return nil, err
			}
		}
		all = append(all, u)
	}
	u, err := usedBy(s.database.PIDs()...)
	return append(all, u), err
}

// table returns the figures of the whole set.
func (f replicaFigures) table(z size) [][]string {
	rows := [][]string{{"", fmt.Sprintf("%d agents", z.agents)}}
	row := func(name, format string, value any) { rows = append(rows, []string{name, fmt.Sprintf(format, value)}) }
	row("cold start: all in sync, s", "%.1f", f.cold.last.Seconds())
	row("sessions of the killed broker", "%d", f.lost)
	row("in sync elsewhere: median, s", "%.1f", f.killed.median.Seconds())
	row("in sync elsewhere: last, s", "%.1f", f.killed.last.Seconds())
	for n, stop := range f.stops {
		row(fmt.Sprintf("rolling restart: end of broker %d, s", n+1), "%.1f", stop.Seconds())
	}
	for _, t := range []struct {
		name string
		publishTimes
	}{{"quiet", f.quiet}, {"loss of a broker", f.loss}, {"rolling restart", f.restart}} {
		if t.most == 0 {
			continue
		}
		row("publish, "+t.name+": p50, ms", "%.1f", milliseconds(t.p50))
		row("publish, "+t.name+": p99, ms", "%.1f", milliseconds(t.p99))
		row("publish, "+t.name+": longest, ms", "%.0f", milliseconds(t.most))
	}
	return rows
}

// programs returns what each program needs.
func (f replicaFigures) programs() [][]string {
	rows := [][]string{{"", "broker 1", "broker 2", "broker 3", "broker 4", "PostgreSQL"}}
	for _, at := range []struct {
		name string
		all  []used
	}{{"at rest", f.rest}, {"after the loss", f.lossStorm}, {"after the rolling restart", f.again}} {
		if at.all == nil {
			continue
		}
		sessions, memory, cpu := []string{at.name + ": sessions"}, []string{at.name + ": memory, MiB"}, []string{at.name + ": processor, % of one"}
		for _, u := range at.all {
			sessions = append(sessions, fmt.Sprintf("%.0f", u.sessions))
			memory = append(memory, fmt.Sprintf("%.0f", u.memory))
			cpu = append(cpu, fmt.Sprintf("%.1f", 100*u.cpu))
		}
		sessions[len(sessions)-1] = "–"
		rows = append(rows, sessions, memory, cpu)
	}
	return rows
}

// goals returns the results beside the targets, which are those of a fleet in one process.
func (f replicaFigures) goals() []goal {
	if f.stops == nil {
		return nil
	}
	longest := time.Duration(0)
	for _, stop := range f.stops {
		longest = max(longest, stop)
	}
	return []goal{
		{name: "clients of a killed broker in sync elsewhere, s", got: f.killed.last.Seconds(), want: elsewhereWithin, atMost: true},
		{name: "publish p99 in a rolling restart, less the quiet one : the longest drain", got: (f.restart.p99 - f.quiet.p99).Seconds() / longest.Seconds(), want: 1, atMost: true},
	}
}
