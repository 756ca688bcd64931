package resync_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

func tag(n byte) (t codec.Tag) { t[0] = n; return t }

func hexTag(n byte) string { t := tag(n); return hex.EncodeToString(t[:]) }

func TestSpecs_Decide(t *testing.T) {
	lists := func(v int64, tag string) []codec.ResourceVersion {
		return []codec.ResourceVersion{{ResourceID: "w", ResourceVersion: v, Tag: tag}}
	}
	live := func(v int64) resync.Spec {
		return resync.Spec{ID: "w", State: resync.Live, Version: v, Tag: tag(1)}
	}
	with := func(s resync.Spec, f func(*resync.Spec)) resync.Spec { f(&s); return s }
	as := func(state resync.State) func(*resync.Spec) {
		return func(s *resync.Spec) { s.State = state }
	}
	for name, c := range map[string]struct {
		held   []codec.ResourceVersion
		record resync.Spec
		want   resync.SendAction
	}{
		"older at the agent":                  {lists(4, ""), live(5), resync.Send},
		"same at the agent":                   {lists(5, ""), live(5), resync.Skip},
		"newer at the agent":                  {lists(6, ""), live(5), resync.Ahead},
		"nothing at the agent":                {nil, live(5), resync.Send},
		"unversioned record":                  {lists(6, ""), live(0), resync.Send},
		"unversioned record, same tag":        {lists(0, hexTag(1)), live(0), resync.Skip},
		"unversioned at the agent":            {lists(0, ""), live(5), resync.Send},
		"same version and tag":                {lists(5, hexTag(1)), live(5), resync.Skip},
		"same version, other tag":             {lists(5, hexTag(2)), live(5), resync.Send},
		"same version, no tag at all":         {lists(5, "nonsense"), live(5), resync.Send},
		"newer with another tag":              {lists(6, hexTag(2)), live(5), resync.Ahead},
		"superseded, OCM agent":               {lists(6, ""), with(live(5), func(s *resync.Spec) { s.Supersedes = true }), resync.Send},
		"superseded, agent holds the new one": {lists(5, hexTag(1)), with(live(5), func(s *resync.Spec) { s.Supersedes = true }), resync.Skip},
		"deleted, same version":               {lists(5, ""), with(live(5), as(resync.Deleted)), resync.Send},
		"deleted, agent is newer":             {lists(6, ""), with(live(5), as(resync.Deleted)), resync.Ahead},
		"deleted, agent is older":             {lists(4, ""), with(live(5), as(resync.Deleted)), resync.SpecThenDeletion},
		"deleted, unversioned":                {lists(4, ""), with(live(0), as(resync.Deleted)), resync.SpecThenDeletion},
		"deleted, never reached the agent":    {nil, with(live(5), as(resync.Deleted)), resync.Send},
		"deleted, restarted agent was behind": {nil, with(live(5), func(s *resync.Spec) { s.State, s.Reported, s.ReportedVersion = resync.Deleted, true, 3 }), resync.SpecThenDeletion},
		"deleted, restarted agent was there":  {nil, with(live(5), func(s *resync.Spec) { s.State, s.Reported, s.ReportedVersion = resync.Deleted, true, 5 }), resync.Send},
		"confirmed, not held":                 {nil, with(live(5), as(resync.Confirmed)), resync.Skip},
		"confirmed, held":                     {lists(5, ""), with(live(5), as(resync.Confirmed)), resync.Send},
		"confirmed, held newer":               {lists(6, ""), with(live(5), as(resync.Confirmed)), resync.Ahead},
		"confirmed, held newer, superseded":   {lists(6, ""), with(live(5), func(s *resync.Spec) { s.State, s.Supersedes = resync.Confirmed, true }), resync.Send},
		"deleted, newer held, superseded":     {lists(6, ""), with(live(5), func(s *resync.Spec) { s.State, s.Supersedes = resync.Deleted, true }), resync.SpecThenDeletion},
		"given up, held":                      {lists(5, ""), with(live(5), as(resync.GivenUp)), resync.Skip},
		"listed twice": {append(lists(5, ""), codec.ResourceVersion{ResourceID: "w", ResourceVersion: 4}, codec.ResourceVersion{ResourceID: "w", ResourceVersion: 6}),
			live(5), resync.Send},
	} {
		s := resync.NewSpecs(c.held)
		if got := s.Decide(c.record); got != c.want {
			t.Errorf("%s: decision %d, want %d", name, got, c.want)
		}
		if o := s.Orphans(); len(o) != 0 {
			t.Errorf("%s: %v is explained by a record and listed as orphan", name, o)
		}
	}
}

func TestSpecs_OrphansAreNamedAndNothingElse(t *testing.T) {
	s := resync.NewSpecs([]codec.ResourceVersion{{ResourceID: "b"}, {ResourceID: "a"}, {ResourceID: "c"}})
	s.Decide(resync.Spec{ID: "c", State: resync.Live})
	s.MarkKnown("unlisted")
	if diff := cmp.Diff([]string{"a", "b"}, s.Orphans()); diff != "" {
		t.Error(diff)
	}
	s.MarkKnown("a")
	if diff := cmp.Diff([]string{"b"}, s.Orphans()); diff != "" {
		t.Error(diff)
	}
	if !s.Lists("a") || s.Lists("unlisted") {
		t.Error("the agent's list differs from its previous list")
	}
}

// fleet holds the records of one cluster and its agent. A test drives it with random steps. Any step may be
// lost. The agent handles events by the rules of OCM's work agent.
type fleet struct {
	tagged  bool
	records map[string]*record
	agent   map[string]copyOf
	next    byte // content of the next spec
}

type record struct {
	resync.Spec
	content byte
}

type copyOf struct {
	version  int64
	content  byte
	tag      codec.Tag
	deleting bool
}

func (f *fleet) deliver(r *record) {
	switch r.State {
	case resync.Live:
		f.deliverSpec(r)
	case resync.Deleted, resync.Confirmed:
		c := f.agent[r.ID]
		c.deleting = true
		f.agent[r.ID] = c
	case resync.GivenUp:
	}
}

func (f *fleet) deliverSpec(r *record) {
	v := r.Version
	if r.Supersedes && !f.tagged {
		v = 0
	}
	old, has := f.agent[r.ID]
	if has && !f.tagged && v != 0 && v < old.version {
		return // an OCM agent treats the spec as stale
	}
	f.agent[r.ID] = copyOf{version: v, content: r.content, tag: r.Tag}
}

func (f *fleet) step(t *rapid.T) {
	id := rapid.StringMatching(`w[0-5]`).Draw(t, "id")
	r := f.records[id]
	switch op := rapid.IntRange(0, 7).Draw(t, "op"); {
	case op <= 3 && (r == nil || r.State != resync.Deleted): // publish
		if r == nil {
			r = &record{Spec: resync.Spec{ID: id, Version: 0}}
			f.records[id] = r
		}
		f.next++
		r.State, r.content, r.Tag = resync.Live, f.next, tag(f.next)
		switch rapid.IntRange(0, 9).Draw(t, "how") {
		case 0: // unversioned
			r.Version, r.Supersedes = 0, false
		case 1: // the source went back in time
			r.Version, r.Supersedes = max(r.Version-2, 0), true
		case 2: // changed without a new version
		default:
			r.Version++
		}
	case op == 4 && r != nil && r.State == resync.Live:
		r.State = resync.Deleted
	case op == 5 && r != nil && r.State == resync.Deleted && f.agent[id].deleting:
		r.State = resync.Confirmed
		delete(f.agent, id)
	case op == 6: // the agent loses a work, or holds one without a record
		if rapid.Bool().Draw(t, "forgets") {
			delete(f.agent, id)
		} else if r == nil {
			f.agent[id] = copyOf{version: 3, content: 255}
		}
	case op == 7 && r != nil && rapid.IntRange(0, 3).Draw(t, "gone") == 0:
		delete(f.records, id) // the broker lost its store
	}
	if r = f.records[id]; r != nil && rapid.Bool().Draw(t, "delivered") {
		f.deliver(r)
	}
}

func (f *fleet) list() (l []codec.ResourceVersion) {
	for id, c := range f.agent {
		v := codec.ResourceVersion{ResourceID: id, ResourceVersion: c.version}
		if f.tagged {
			v.Tag = hex.EncodeToString(c.tag[:])
		}
		l = append(l, v)
	}
	return l
}

// resync runs the comparison and delivers the result. It returns the number of sends, the ids of ahead works,
// and the orphans.
func (f *fleet) resync() (sends int, ahead map[string]bool, orphans []string) {
	s := resync.NewSpecs(f.list())
	ahead = map[string]bool{}
	for id, r := range f.records {
		switch s.Decide(r.Spec) {
		case resync.SpecThenDeletion:
			f.deliverSpec(r)
			f.deliver(r)
			sends++
		case resync.Send:
			f.deliver(r)
			sends++
		case resync.Ahead:
			ahead[id] = true
		case resync.Skip:
		}
	}
	return sends, ahead, s.Orphans()
}

func TestSpecs_BothSidesAreEqualAfterwards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &fleet{tagged: rapid.Bool().Draw(t, "tagged"), records: map[string]*record{}, agent: map[string]copyOf{}}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			f.step(t)
		}
		before := map[string]copyOf{}
		for id, c := range f.agent {
			before[id] = c
		}
		_, ahead, orphans := f.resync()
		var want []string
		for id, c := range before {
			if f.records[id] == nil {
				want = append(want, id)
				if f.agent[id] != c {
					t.Fatalf("%s is explained by no record and was touched: %+v, was %+v", id, f.agent[id], c)
				}
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, orphans); diff != "" {
			t.Fatalf("orphans: %s", diff)
		}
		for id, r := range f.records {
			f.check(t, r, ahead[id], before)
		}
		if !f.tagged {
			return
		}
		// Equal records cause no send: only deletions are sent again.
		deletions := 0
		for _, r := range f.records {
			if ahead[r.ID] {
				continue
			}
			if _, held := f.agent[r.ID]; r.State == resync.Deleted || r.State == resync.Confirmed && held {
				deletions++
			}
		}
		if sends, _, _ := f.resync(); sends != deletions {
			t.Fatalf("a second comparison sent %d records, %d of them are deletions", sends, deletions)
		}
	})
}

func (f *fleet) check(t *rapid.T, r *record, ahead bool, before map[string]copyOf) {
	got, has := f.agent[r.ID]
	was, had := before[r.ID]
	if ahead {
		if got != was || r.Version == 0 || r.Supersedes || was.version <= r.Version {
			t.Fatalf("record %+v is left to its source, agent had %+v and has %+v", r, was, got)
		}
		return
	}
	switch r.State {
	case resync.Live:
		sameVersion := !f.tagged && had && was.version == r.Version
		if sameVersion {
			return // the list of an OCM agent cannot show the difference
		}
		if !has || got.content != r.content {
			t.Fatalf("record %+v, agent has %+v (%v)", r, got, has)
		}
	case resync.Deleted:
		if !has || !got.deleting {
			t.Fatalf("deletion of %+v did not arrive: %+v", r, got)
		}
		if had && (was.version < r.Version || r.Version == 0 || r.Supersedes) && got.content != r.content {
			t.Fatalf("deletion of %+v arrived without its last spec: %+v", r, got)
		}
	case resync.Confirmed:
		if has && !got.deleting && (r.Version == 0 || was.version <= r.Version) {
			t.Fatalf("%+v was confirmed and the agent keeps %+v", r, got)
		}
		if !had && has {
			t.Fatalf("%+v was confirmed and came back as %+v", r, got)
		}
	case resync.GivenUp:
	}
}

func BenchmarkSpecs_InSync(b *testing.B) {
	const n = 10_000
	list := make([]codec.ResourceVersion, n)
	for i := range list {
		list[i] = codec.ResourceVersion{ResourceID: fmt.Sprintf("28e8bfbf-1292-522f-999a-%012d", i), ResourceVersion: 7}
	}
	b.ReportAllocs()
	for b.Loop() {
		s := resync.NewSpecs(list)
		for i := range list {
			if s.Decide(resync.Spec{ID: list[i].ResourceID, State: resync.Live, Version: 7}) != resync.Skip {
				b.Fatal("not in sync")
			}
		}
	}
}
