package resync_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
)

func TestCompareWorks(t *testing.T) {
	rec := func(id, name string, version int64, content byte) codec.InventoryRecord {
		return codec.InventoryRecord{ResourceID: id, Name: name, Version: version, Tag: tag(content), Revision: 7}
	}
	dead := func(r codec.InventoryRecord) codec.InventoryRecord { r.Tombstone = true; return r }
	work := func(id, name string, version int64, content byte) resync.Work {
		return resync.Work{ID: id, Name: name, Version: version, Tag: tag(content)}
	}
	with := func(w resync.Work, f func(*resync.Work)) resync.Work { f(&w); return w }
	stuck := func(w *resync.Work) { w.Unpublishable = true }
	deleting := func(w *resync.Work) { w.Deleting = true }
	for name, c := range map[string]struct {
		works   []resync.Work
		records []codec.InventoryRecord
		want    resync.Works
	}{
		"same":                     {[]resync.Work{work("u", "a", 3, 1)}, []codec.InventoryRecord{rec("u", "a", 3, 1)}, resync.Works{InSync: []string{"u"}, Live: 1}},
		"same, but not tagged":     {[]resync.Work{with(work("u", "a", 3, 1), func(w *resync.Work) { w.Untagged = true })}, []codec.InventoryRecord{rec("u", "a", 3, 1)}, resync.Works{Publish: []string{"u"}, Live: 1}},
		"unknown to the broker":    {[]resync.Work{work("u", "a", 3, 1)}, nil, resync.Works{Publish: []string{"u"}}},
		"older at the broker":      {[]resync.Work{work("u", "a", 3, 1)}, []codec.InventoryRecord{rec("u", "a", 2, 2)}, resync.Works{Publish: []string{"u"}, Live: 1}},
		"another spec":             {[]resync.Work{work("u", "a", 3, 1)}, []codec.InventoryRecord{rec("u", "a", 3, 2)}, resync.Works{Publish: []string{"u"}, Live: 1}},
		"newer at the broker":      {[]resync.Work{work("u", "a", 3, 1)}, []codec.InventoryRecord{rec("u", "a", 4, 2)}, resync.Works{Supersede: []resync.OlderWork{{ID: "u", Version: 4, Revision: 7}}, Live: 1}},
		"deleted at the broker":    {[]resync.Work{work("u", "a", 3, 1)}, []codec.InventoryRecord{dead(rec("u", "a", 2, 2))}, resync.Works{Supersede: []resync.OlderWork{{ID: "u", Version: 2, Revision: 7, Tombstone: true}}}},
		"deleted at both":          {[]resync.Work{with(work("u", "a", 3, 1), deleting)}, []codec.InventoryRecord{dead(rec("u", "a", 3, 2))}, resync.Works{Publish: []string{"u"}}},
		"deleted at the source":    {[]resync.Work{with(work("u", "a", 3, 1), deleting)}, []codec.InventoryRecord{rec("u", "a", 9, 2)}, resync.Works{Publish: []string{"u"}, Live: 1}},
		"stuck":                    {[]resync.Work{with(work("u", "a", 3, 1), stuck)}, []codec.InventoryRecord{rec("u", "a", 2, 2)}, resync.Works{Live: 1}},
		"missing":                  {nil, []codec.InventoryRecord{rec("v", "b", 1, 1), rec("u", "a", 2, 2)}, resync.Works{Missing: []codec.InventoryRecord{rec("u", "a", 2, 2), rec("v", "b", 1, 1)}, Live: 2}},
		"deletion of the missing":  {nil, []codec.InventoryRecord{dead(rec("u", "a", 2, 2))}, resync.Works{}},
		"name taken by a new work": {[]resync.Work{work("u2", "a", 1, 1)}, []codec.InventoryRecord{rec("u", "a", 2, 2)}, resync.Works{Publish: []string{"u2"}, Replacing: []string{"u2"}, Live: 1}},
		"name of a dying work":     {[]resync.Work{with(work("u2", "a", 1, 1), deleting)}, []codec.InventoryRecord{rec("u", "a", 2, 2)}, resync.Works{Publish: []string{"u2"}, Missing: []codec.InventoryRecord{rec("u", "a", 2, 2)}, Live: 1}},
		"name of a stuck work":     {[]resync.Work{with(work("u2", "a", 1, 1), stuck)}, []codec.InventoryRecord{rec("u", "a", 2, 2)}, resync.Works{Missing: []codec.InventoryRecord{rec("u", "a", 2, 2)}, Live: 1}},
		"missing, but waits":       {nil, []codec.InventoryRecord{{ResourceID: "u", Name: "a", Version: 1}, dead(rec("u", "a", 2, 2))}, resync.Works{QueuedBehindDeletion: 1, Live: 1}},
		"waits":                    {[]resync.Work{work("u", "a", 3, 1)}, []codec.InventoryRecord{dead(rec("u", "b", 1, 2)), {ResourceID: "u", Name: "a", Version: 3, Tag: tag(1)}}, resync.Works{InSync: []string{"u"}, Live: 1}},
		"listed twice":             {[]resync.Work{work("u", "a", 3, 1)}, []codec.InventoryRecord{rec("u", "a", 3, 1), {ResourceID: "u", Name: "a", Version: 2, Revision: 6}}, resync.Works{InSync: []string{"u"}, Live: 1}},
	} {
		if diff := cmp.Diff(c.want, resync.CompareWorks(c.works, c.records), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestMayDelete(t *testing.T) {
	for _, c := range []struct {
		missing, live int
		want          bool
	}{{0, 0, true}, {10, 10, true}, {11, 11, false}, {11, 219, false}, {11, 220, true}, {50, 1000, true}, {51, 1000, false}} {
		if got := resync.MayDelete(c.missing, c.live); got != c.want {
			t.Errorf("%d of %d: %t", c.missing, c.live, got)
		}
	}
}

// records is a broker as one source sees it on one cluster: one record per id, one id per name, and the rules
// of publishing.
type records map[string]codec.InventoryRecord

func (l records) list() []codec.InventoryRecord {
	var list []codec.InventoryRecord
	for _, r := range l {
		list = append(list, r)
	}
	return list
}

// publish publishes a live work; supersedes is the condition, 0 without one.
func (l records) publish(t *rapid.T, w resync.Work, supersedes uint64) {
	r, has := l[w.ID]
	switch {
	case supersedes != 0 && supersedes != r.Revision:
		t.Fatalf("%s: the condition %d does not hold, the record is %+v", w.ID, supersedes, r)
	case supersedes != 0 || !has:
	case r.Tombstone || r.Version > w.Version:
		t.Fatalf("%s is older than its record %+v and published all the same", w.ID, r)
	}
	for id, r := range l {
		if r.Name == w.Name && id != w.ID {
			delete(l, id)
		}
	}
	l[w.ID] = codec.InventoryRecord{ResourceID: w.ID, Name: w.Name, Version: w.Version, Tag: w.Tag, Revision: r.Revision + 100}
}

func TestCompareWorks_MakesBothSidesEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := records{}
		used := map[string]bool{}
		for i := range rapid.IntRange(0, 40).Draw(t, "records") {
			r := codec.InventoryRecord{
				ResourceID: fmt.Sprint("u", i), Name: rapid.StringMatching(`[a-z]`).Draw(t, "name"),
				Version: rapid.Int64Range(1, 3).Draw(t, "version"), Tag: tag(rapid.Byte().Draw(t, "content") % 3),
				Revision: uint64(i + 1), Tombstone: rapid.IntRange(0, 4).Draw(t, "tombstone") == 0,
			}
			if !used[r.Name] {
				used[r.Name], l[r.ResourceID] = true, r
			}
		}
		var works []resync.Work
		clear(used)
		for i := range rapid.IntRange(0, 40).Draw(t, "works") {
			w := resync.Work{
				ID: fmt.Sprint("u", rapid.IntRange(0, 60).Draw(t, "id")), Name: fmt.Sprint("n", i),
				Version: rapid.Int64Range(1, 3).Draw(t, "version"), Tag: tag(rapid.Byte().Draw(t, "content") % 3),
				Untagged: rapid.IntRange(0, 9).Draw(t, "untagged") == 0, Deleting: rapid.IntRange(0, 4).Draw(t, "deleting") == 0,
				Unpublishable: rapid.IntRange(0, 9).Draw(t, "stuck") == 0,
			}
			if r, has := l[w.ID]; has {
				w.Name = r.Name // the name of a work never changes
			} else if rapid.Bool().Draw(t, "again") {
				w.Name = rapid.StringMatching(`[a-z]`).Draw(t, "name")
			}
			if !used[w.ID] && !used[w.Name] {
				used[w.ID], used[w.Name] = true, true
				works = append(works, w)
			}
		}
		before := l.list()
		plan := resync.CompareWorks(works, before)

		byID := map[string]resync.Work{}
		for _, w := range works {
			byID[w.ID] = w
		}
		for _, id := range plan.InSync {
			if w, r := byID[id], l[id]; r.Tombstone || r.Tag != w.Tag || r.Version > w.Version || w.Deleting {
				t.Fatalf("%+v is not in sync with %+v", w, r)
			}
		}
		for _, b := range plan.Supersede {
			l.publish(t, byID[b.ID], b.Revision)
		}
		for _, id := range plan.Publish {
			if w := byID[id]; w.Deleting {
				if r, has := l[id]; has {
					r.Tombstone = true
					l[id] = r
				}
			} else {
				l.publish(t, w, 0)
			}
		}
		for _, r := range plan.Missing {
			if now, has := l[r.ResourceID]; !has || now.Tombstone || now.Revision != r.Revision {
				t.Fatalf("%+v is missing, but the record is %+v", r, now)
			}
			if _, has := byID[r.ResourceID]; has {
				t.Fatalf("%+v would be deleted, but the source has it", r)
			}
			delete(l, r.ResourceID)
		}

		live := 0
		for _, r := range before {
			if !r.Tombstone {
				live++
			}
		}
		if plan.Live != live {
			t.Fatalf("%d live records counted, want %d", plan.Live, live)
		}
		checkEqual(t, l, works)
	})
}

// checkEqual compares the live works of both sides.
func checkEqual(t *rapid.T, l records, works []resync.Work) {
	for _, w := range works {
		r, has := l[w.ID]
		switch {
		case w.Unpublishable:
		case w.Deleting && has && !r.Tombstone:
			t.Fatalf("%+v is deleted and live at the broker: %+v", w, r)
		case !w.Deleting && (!has || r.Tombstone || r.Tag != w.Tag):
			t.Fatalf("%+v is not at the broker: %+v", w, r)
		}
	}
	for id, r := range l {
		if !r.Tombstone && !slices.ContainsFunc(works, func(w resync.Work) bool { return w.ID == id }) {
			t.Fatalf("%+v is live at the broker only", r)
		}
	}
}
