package admin

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Lists are read in small parts. Only one list reads at a time, and a pause follows each part. This bounds the
// CPU time of lists for any number of callers; a publish waits for one part at most. A call returns one page,
// so a caller that lists everything queues again for each page.
const (
	pageRows = 1000
	partRows = 50
	// restPerRow limits all lists together to 20,000 rows per second. restFactor multiplies the time that a part
	// took.
	restPerRow = 50 * time.Microsecond
	restFactor = 4
)

// scanLimiter lets one part be read at a time. A list does not block the others while it sends.
type scanLimiter struct {
	cfg  *settings.Config
	slot taskgroup.Semaphore // of the part that is read
	next time.Time           // end of the pause; only for the holder of the slot
}

// take waits for its turn and calls read, which returns the number of rows that it scanned.
func (t *scanLimiter) take(ctx context.Context, read func() (int, error)) error {
	if !t.slot.Acquire(ctx) {
		return request.CallerGone(ctx)
	}
	defer t.slot.Release()
	if rest := t.next.Sub(t.cfg.Now()); rest > 0 && !taskgroup.Sleep(ctx, rest) {
		return request.CallerGone(ctx)
	}
	began := t.cfg.Now()
	rows, err := read()
	end := t.cfg.Now()
	t.next = end.Add(max(time.Duration(rows)*restPerRow, restFactor*end.Sub(began)))
	return err
}

// position is a position in a list. In a list of works it has an id; lists of several kinds of rows have
// phases.
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

// behind returns the positions after p. all must be sorted.
func behind(all []position, p position) []position {
	i, found := slices.BinarySearchFunc(all, p, position.compare)
	if found {
		i++
	}
	return all[i:]
}

// within returns p if all contains it. all must be sorted.
func (p position) within(all []position) []position {
	if _, found := slices.BinarySearchFunc(all, p, position.compare); found {
		return []position{p}
	}
	return nil
}

// token returns a position as a page token; "" is the begin of a list.
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
	wrong := request.Invalid("", "the page token is not from this broker", "list again without a token")
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

// part is the result of one read of a list.
type part[T any] struct {
	after  position // the last scanned position
	looked int
	rows   []*T
	done   bool // this is the last part
}

func (p *part[T]) full() bool { return p.looked >= partRows }

// add adds a row.
func (p *part[T]) add(at position, row *T) {
	p.skip(at)
	p.rows = append(p.rows, row)
}

// skip passes a position without a row.
func (p *part[T]) skip(at position) {
	p.after = at
	p.looked++
}

// page is a message with either a row or next_page_token, with which the next page begins.
type page[T any] interface {
	*T
	proto.Message
}

// list sends the warnings and one page, which begins after token. It calls read once per part. If the list has more rows, the
// page ends with a token.
func list[T any, M page[T]](a *Admin, token string, s ggrpc.ServerStreamingServer[T], read func(*part[T]) error) error {
	a.warn(s)
	after, err := parseToken(token)
	if err != nil {
		return err
	}
	for looked := 0; ; {
		p := part[T]{after: after}
		if err := a.limiter.take(s.Context(), func() (int, error) { err := read(&p); return p.looked, err }); err != nil {
			return err
		}
		for _, row := range p.rows {
			if err := s.Send(row); err != nil {
				return err
			}
		}
		if p.done {
			return nil
		}
		after = p.after
		if looked += p.looked; looked >= pageRows {
			more := new(T)
			m := M(more).ProtoReflect()
			m.Set(m.Descriptor().Fields().ByName("next_page_token"), protoreflect.ValueOfString(after.token()))
			return s.Send(more)
		}
	}
}

// scopes returns the scopes of the named cluster, or of all known ones, in the order of lists.
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
