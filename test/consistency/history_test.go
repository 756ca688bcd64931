package consistency

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var key = Key{"cluster1", "work"}

// step is one call on a history.
type step func(*History)

func write(l *History)         { l.Accepted(key, l.Next(key)) }
func deleteWork(l *History)    { l.Deleting(key) }
func gone(l *History)          { l.RecordDeletion(key) }
func mayReturn(l *History)     { l.Returns(true) }
func seen(n int64) step        { return func(l *History) { l.RecordObject(key, "uid", n) } }
func seenOther(n int64) step   { return func(l *History) { l.RecordObject(key, "other", n) } }
func unreadable(l *History)    { l.Unreadable(key, "many") }
func emptyList(l *History)     { l.Listed(key.Cluster, nil) }
func otherCluster(l *History)  { l.Listed("cluster2", nil) }
func listed(n int64) step      { return listedAs("uid", n) }
func listedOther(n int64) step { return listedAs("other", n) }

func listedAs(uid types.UID, n int64) step {
	return func(l *History) { l.Listed(key.Cluster, map[string]Object{key.Name: {UID: uid, Counter: n}}) }
}

func TestLedger_Checks(t *testing.T) {
	for name, tc := range map[string]struct {
		steps []step
		want  string // part of the one complaint; "" is none
	}{
		"counts up":                             {[]step{write, seen(1), write, write, seen(3)}, ""},
		"the same again":                        {[]step{write, seen(1), seen(1)}, ""},
		"seen before the hub answers":           {[]step{func(l *History) { l.Next(key) }, seen(1)}, ""},
		"falls":                                 {[]step{write, write, seen(2), seen(1)}, "fell from 2 to 1"},
		"falls in a list":                       {[]step{write, write, seen(2), listed(1)}, "fell from 2 to 1"},
		"never written":                         {[]step{write, seen(2)}, "never written"},
		"unreadable":                            {[]step{write, unreadable}, `"many"`},
		"deleted":                               {[]step{write, seen(1), deleteWork, gone}, ""},
		"deleted before it knew the last":       {[]step{write, seen(1), write, deleteWork, gone}, ""},
		"deleted without a request":             {[]step{write, seen(1), gone}, "was deleted on the cluster at 1"},
		"missing in a list":                     {[]step{write, seen(1), emptyList}, "was deleted on the cluster at 1"},
		"another cluster's list":                {[]step{write, seen(1), otherCluster}, ""},
		"deleted and missing in a list":         {[]step{write, seen(1), deleteWork, emptyList}, ""},
		"replaced without a request":            {[]step{write, seen(1), seenOther(1)}, "was deleted on the cluster at 1"},
		"replaced without a request, in a list": {[]step{write, seen(1), listedOther(1)}, "was deleted on the cluster at 1"},
		"created again":                         {[]step{write, seen(1), deleteWork, gone, write, seenOther(2)}, ""},
		"created again while not watched":       {[]step{write, seen(1), deleteWork, write, listedOther(2)}, ""},
		"the new one deleted with the old":      {[]step{write, seen(1), deleteWork, gone, write, seenOther(2), gone}, "was deleted on the cluster at 2"},
		"comes late, when it is being deleted":  {[]step{write, write, deleteWork, seen(1), gone}, ""},
		"the old one comes back":                {[]step{write, seen(1), deleteWork, gone, seenOther(1)}, "came back with 1"},
		"the old one may come back":             {[]step{mayReturn, write, seen(1), deleteWork, gone, seenOther(1), gone}, ""},
		"a returned work grows":                 {[]step{mayReturn, write, write, seen(2), deleteWork, gone, seenOther(1), seenOther(2)}, ""},
		"a returned work must not fall":         {[]step{mayReturn, write, write, seen(2), deleteWork, gone, seenOther(2), seenOther(1)}, "fell from 2 to 1"},
		"a live one must not become older":      {[]step{mayReturn, write, seen(1), deleteWork, gone, write, seenOther(2), seenOther(1)}, "fell from 2 to 1"},
		"a live one must not become older,":     {[]step{mayReturn, write, write, seen(2), seen(1)}, "fell from 2 to 1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewHistory(time.Now)
			for _, s := range tc.steps {
				s(l)
			}
			complaints := l.Complaints()
			switch {
			case tc.want == "" && len(complaints) > 0:
				t.Errorf("complains: %v", complaints)
			case tc.want != "" && (len(complaints) != 1 || !strings.Contains(complaints[0].What, tc.want)):
				t.Errorf("complaints %v, want one about %q", complaints, tc.want)
			}
		})
	}
}

func TestLedger_PrintsTheHistory(t *testing.T) {
	l := NewHistory(func() time.Time { return time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC) })
	write(l)
	seen(1)(l)
	gone(l)
	want := "cluster1/work: was deleted on the cluster at 1; on the hub it was not\n" +
		"\t12:00:00.000 write 1\n\t12:00:00.000 the hub has 1\n\t12:00:00.000 seen 1 (uid)\n\t12:00:00.000 gone at 1\n" +
		"\t12:00:00.000 BROKEN: was deleted on the cluster at 1; on the hub it was not"
	if got := l.Complaints()[0].String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for range 100 {
		write(l)
	}
	if n := len(l.history(key)); n != historyLength {
		t.Errorf("the history has %d entries, want the last %d", n, historyLength)
	}
}

func TestLedger_MeasuresProgress(t *testing.T) {
	l := NewHistory(time.Now)
	progress := func(accepted, applied int64) {
		t.Helper()
		if a, b := l.Progress(); a != accepted || b != applied {
			t.Errorf("%d accepted and %d applied, want %d and %d", a, b, accepted, applied)
		}
	}
	for range 5 {
		write(l)
	}
	progress(5, 0)
	seen(3)(l)
	progress(5, 3)
	l.Next(key)
	seen(6)(l) // before the hub has answered
	progress(5, 5)
	deleteWork(l)
	progress(0, 0)
	if n := l.Events(); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
}
