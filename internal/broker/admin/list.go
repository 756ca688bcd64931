package admin

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Lists are read in small parts, all lists in turn, and each part is followed by a rest: what
// they take of a processor is bounded however many ask, and a publish never waits for more
// than one part. A page ends a call, so that whoever lists everything begins to wait for the
// others again and again.
const (
	pageRows = 1000
	partRows = 50
	// restPerRow makes of all lists together 20,000 rows a second; restFactor is of the time
	// that a part took.
	restPerRow = 50 * time.Microsecond
	restFactor = 4
)

// scanLimiter lets one part be read at a time. No list holds the turn while it sends.
type scanLimiter struct {
	cfg  *settings.Config
	free chan struct{} // holds a token while nobody has the turn
	next time.Time     // when the rest is over; of who has the turn
}

func newScanLimiter(cfg *settings.Config) scanLimiter {
	t := scanLimiter{cfg: cfg, free: make(chan struct{}, 1)}
	t.free <- struct{}{}
	return t
}

// take calls read, which returns how many rows it looked at, in its turn.
func (t *scanLimiter) take(ctx context.Context, read func() (int, error)) error {
	select {
	case <-t.free:
	case <-ctx.Done():
		return request.CallerGone(ctx)
	}
	defer func() { t.free <- struct{}{} }()
	if rest := t.next.Sub(t.cfg.Now()); rest > 0 && !taskgroup.Sleep(ctx, rest) {
		return request.CallerGone(ctx)
	}
	began := t.cfg.Now()
	rows, err := read()
	end := t.cfg.Now()
	t.next = end.Add(max(time.Duration(rows)*restPerRow, restFactor*end.Sub(began)))
	return err
}

// position is a place in the order of a list. A record of a list of works has an id; a list
// that shows one thing after another has phases.
type position struct {
	phase int
	scope store.Scope
	id    string
}

func (p position) compare(q position) int {
	return cmp.Or(
		cmp.Compare(p.phase, q.phase), cmp.Compare(p.scope.Cluster, q.scope.Cluster),
		cmp.Compare(p.scope.DataType.String(), q.scope.DataType.String()), cmp.Compare(p.id, q.id),
	)
}

// behind returns the positions after one, of those in order.
func behind(all []position, p position) []position {
	i, found := slices.BinarySearchFunc(all, p, position.compare)
	if found {
		i++
	}
	return all[i:]
}

// within returns p, if it is one of those in order.
func (p position) within(all []position) []position {
	if _, found := slices.BinarySearchFunc(all, p, position.compare); found {
		return []position{p}
	}
	return nil
}

// token is how a position goes out; the zero position, where a list begins, is "".
func (p position) token() string {
	d := p.scope.DataType
	fields := []string{strconv.Itoa(p.phase), p.scope.Cluster, d.Group, d.Version, d.Resource, p.id}
	for i, f := range fields {
		fields[i] = url.PathEscape(f)
	}
	return strings.Join(fields, "/")
}

// parseToken is the inverse of token.
func parseToken(s string) (p position, err error) {
	if s == "" {
		return p, nil
	}
	wrong := request.Invalid("", "the page token is none of this broker", "begin anew without one")
	fields := strings.Split(s, "/")
	if len(fields) != 6 {
		return p, wrong
	}
	for i, f := range fields {
		if fields[i], err = url.PathUnescape(f); err != nil {
			return p, wrong
		}
	}
	if p.phase, err = strconv.Atoi(fields[0]); err != nil {
		return p, wrong
	}
	p.scope = store.Scope{Cluster: fields[1], DataType: codec.DataType{Group: fields[2], Version: fields[3], Resource: fields[4]}}
	p.id = fields[5]
	return p, nil
}

// part is what is read in one turn.
type part[T any] struct {
	after  position // the last one that was looked at
	looked int
	rows   []*T
	done   bool // it is the last one
}

func (p *part[T]) full() bool { return p.looked >= partRows }

// add adds a row.
func (p *part[T]) add(at position, row *T) {
	p.skip(at)
	p.rows = append(p.rows, row)
}

// skip passes what is not wanted.
func (p *part[T]) skip(at position) {
	p.after = at
	p.looked++
}

// page is a message with a row, or with next_page_token, which says where the next page begins.
type page[T any] interface {
	*T
	proto.Message
}

// list sends one page behind a token: what read adds to part after part, and then, if there is
// more, a token.
func list[T any, M page[T]](ctx context.Context, a *Admin, token string, send func(M) error, read func(*part[T]) error) error {
	after, err := parseToken(token)
	if err != nil {
		return err
	}
	for looked := 0; ; {
		p := part[T]{after: after}
		if err := a.limiter.take(ctx, func() (int, error) { err := read(&p); return p.looked, err }); err != nil {
			return err
		}
		for _, row := range p.rows {
			if err := send(row); err != nil {
				return err
			}
		}
		if p.done {
			return nil
		}
		after = p.after
		if looked += p.looked; looked >= pageRows {
			more := M(new(T)).ProtoReflect()
			more.Set(more.Descriptor().Fields().ByName("next_page_token"), protoreflect.ValueOfString(after.token()))
			return send(more.Interface().(M))
		}
	}
}

// scopes are the cluster that is named, or all that are known, in the order of lists.
func (a *Admin) scopes(cluster string) []position {
	all := []position{}
	add := func(d codec.DataType, clusters []string) {
		for _, c := range clusters {
			if cluster == "" || c == cluster {
				all = append(all, position{scope: store.Scope{DataType: d, Cluster: c}})
			}
		}
	}
	for _, d := range codec.DataTypes() {
		add(d, a.cfg.Store.Clusters(d))
	}
	if a.hub != nil {
		add(codec.ManifestBundles, a.hub.Clusters())
	}
	slices.SortFunc(all, position.compare)
	return slices.Compact(all)
}
