package core

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// formerState returns the state that a hub-source of commit 0647681f saved in a ConfigMap. TestFormer_Write of
// package hubsource in that commit wrote the files.
func formerState(t *testing.T, name string) SavedState {
	t.Helper()
	b, err := os.ReadFile("../testdata/former/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var m corev1.ConfigMap
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return StateOf(m.Data)
}

// TestFormer_Cursor: the broker's stream continues from the cursor that a former hub-source saved.
func TestFormer_Cursor(t *testing.T) {
	for name, want := range map[string]string{"synced": "store-1/store-2/4", "settled": "store-1/store-2/19", "suspicion": "store-1/store-2/15"} {
		f := comparingFixture(t, formerState(t, name))
		if got := f.core.Hello().Cursor; got != want {
			t.Errorf("%s: it sends the cursor %q, want %q", name, got, want)
		}
	}
}

// TestFormer_RollbackSuspicion: the rollback suspicion of a former hub-source lasts. It covers every cluster, and its
// position is not new.
func TestFormer_RollbackSuspicion(t *testing.T) {
	s := formerState(t, "suspicion")
	if !s.suspectsAll() {
		t.Errorf("state %+v does not suspect all clusters", s)
	}
	f := comparingFixture(t, s)
	kept, unsaved := f.core.epochs.state()
	if !slices.Equal(kept.Withheld, []string{everywhere}) || !samePosition(kept.SuspectedPosition, s.SuspectedPosition) || unsaved {
		t.Errorf("it keeps %+v, unsaved %t, of %+v", kept, unsaved, s)
	}
	if s := formerState(t, "settled"); len(s.Withheld) != 0 || s.suspectsAll() {
		t.Errorf("state %+v has a suspicion", s)
	}
}
