package value

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

var key = store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "u1"}

func sample() *store.Meta {
	return &store.Meta{
		Key: key, State: store.Tombstone, Owner: "hub", Name: "work", Version: 3, SpecRevision: 7, StatusRevision: 9, Failing: true,
		DeletedAt: time.Unix(5, 6).UTC(), Queued: &store.QueuedSpec{ResourceID: "u2", Owner: "hub", Name: "work"},
		Sizes: store.Sizes{Spec: 1, Status: 2, Queued: 3},
	}
}

// TestUnseal_FindsEachDamage: each flipped bit, each lost byte and another key is damage. A newer format is no damage.
func TestUnseal_FindsEachDamage(t *testing.T) {
	k, body := Key(Meta, key), AppendMeta(nil, sample())
	v := Seal(k, body)
	if got, err := Unseal(k, v); err != nil || !bytes.Equal(got, body) {
		t.Fatalf("got %q, %v", got, err)
	}
	damaged := func(what string, k, v []byte) {
		t.Helper()
		if _, err := Unseal(k, v); !errors.As(err, new(*store.DamageError)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range v {
		flipped := bytes.Clone(v)
		flipped[i] ^= 1
		damaged("a flipped bit", k, flipped)
		damaged("a lost end", k, v[:i])
	}
	damaged("another key", Key(Spec, key), v)
	if err := Damage(k, "it is gone"); !strings.Contains(err.Error(), "c1/u1") {
		t.Errorf("%v does not name the record", err)
	}
}

// FuzzValue: any bytes under a key are a record or damage. A record survives another round.
func FuzzValue(f *testing.F) {
	f.Add(AppendMeta(nil, sample()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		k := Key(Meta, key)
		body, err := Unseal(k, Seal(k, body))
		if err != nil {
			t.Fatal(err)
		}
		m, err := DecodeMeta(key, k, body)
		if err != nil {
			if !errors.As(err, new(*store.DamageError)) {
				t.Fatalf("no damage: %v", err)
			}
			return
		}
		again, err := DecodeMeta(key, k, AppendMeta(nil, m))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, again); d != "" {
			t.Errorf("(-once +twice):\n%s", d)
		}
	})
}
