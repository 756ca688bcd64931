package leader

import (
	"slices"
	"strconv"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/history"
)

// A server was restored, and written to until its position was later. It has the Lease as it was before its
// last renewal.
func TestMemory_KnowsTheLastWrite(t *testing.T) {
	api := &apiserver{}
	var reported []history.Evidence
	m := Remember(api, "ns", "name", func(e history.Evidence) { reported = append(reported, e) })
	expect := func(when string, want ...history.Evidence) {
		t.Helper()
		if err := m.ReadBack(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(reported, want) {
			t.Errorf("%s: reported %v, want %v", when, reported, want)
		}
		reported = nil
	}
	put := func(uid types.UID, version int) {
		api.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "name", UID: uid, ResourceVersion: strconv.Itoa(version)}}
	}
	write := func() {
		t.Helper()
		l, err := m.Leases("ns").Get(t.Context(), "name", metav1.GetOptions{})
		if err == nil {
			_, err = m.Leases("ns").Update(t.Context(), l, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	expect("nothing was written")
	put("u1", 100)
	api.version = 100
	write()
	expect("as it was written")
	put("u1", 100)
	expect("restored", history.Older)
	expect("reported once")
	write()
	put("u2", 500)
	expect("created again", history.Missing)
	put("u1", 600)
	api.version = 600
	write()
	put("u1", 700)
	expect("another replica has it")
	api.lease = nil
	expect("gone", history.Missing)
	put("u1", 800)
	api.version = 800
	write()
	m.Forget()
	put("u1", 1)
	expect("the last write is forgotten")
}
