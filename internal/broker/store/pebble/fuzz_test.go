package pebble

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// FuzzUnseal: a value is damaged, of a newer release, or exactly what sealing
// its body gives; and so is the file that a clean stop leaves.
func FuzzUnseal(f *testing.F) {
	key := []byte("mgroup\x00v1\x00works\x00c\x00u")
	good := seal(key, []byte("body of a value"))
	f.Add(key, good)
	f.Add(key, good[:len(good)-1])
	newer := bytes.Clone(good)
	newer[0] = format + 1
	f.Add(key, reseal(key, newer))
	f.Add([]byte(cleanName), seal([]byte(cleanName), encodeTerm(term{id: "t", first: 9})))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, key, v []byte) {
		body, err := unseal(key, v)
		checkRefusal(t, err)
		if err == nil && !bytes.Equal(seal(key, body), v) {
			t.Fatalf("value %x at %q has body %x, and that has another value", v, key, body)
		}

		files := vfs.NewMem()
		w, err := files.Create(cleanName, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(v); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		_, ok, err := readClean(files, "")
		checkRefusal(t, err)
		if ok != (err == nil) {
			t.Fatalf("file of a clean stop: ok %v, %v", ok, err)
		}
	})
}

// checkRefusal: an error says what is damaged, or which release is needed.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	var damaged *store.DamageError
	var newer *FormatError
	if err != nil && !errors.As(err, &damaged) && !errors.As(err, &newer) {
		t.Fatalf("neither damage nor a newer format: %v", err)
	}
}

// FuzzParseKey: every storage key is damaged, or exactly that of what it leads
// to; and every one can be printed.
func FuzzParseKey(f *testing.F) {
	k := store.Key{DataType: codec.DataType{Group: "g", Version: "v", Resource: "r"}, Cluster: "c", ResourceID: "u"}
	f.Add(recordKey(keyMeta, k))
	f.Add(ownerKey("owner", k))
	f.Add(clusterKey(k.DataType, "c"))
	f.Add(numberKey(keyRevision, 7))
	f.Add(bookmarkKey("compared/hub/c"))
	f.Add([]byte{keyEpoch})
	f.Fuzz(func(t *testing.T, key []byte) {
		printable(key)
		if end := after(key); end != nil && bytes.Compare(key, end) >= 0 {
			t.Errorf("%q does not lie before %q", key, end)
		}
		if len(key) == 0 {
			return // the engine has no such key
		}
		if k, err := parseRecordKey(key); err == nil {
			checkKey(t, key, recordKey(key[0], k))
		} else {
			checkRefusal(t, err)
		}
		if k, err := parseOwnerKey(key); err == nil {
			owner, _, _ := bytes.Cut(key[1:], []byte{separator})
			checkKey(t, key[1:], ownerKey(string(owner), k)[1:])
		} else {
			checkRefusal(t, err)
		}
		if dt, cluster, err := parseClusterKey(key); err == nil {
			checkKey(t, key[1:], clusterKey(dt, cluster)[1:])
		} else {
			checkRefusal(t, err)
		}
		if n, err := parseNumberKey(key); err == nil {
			checkKey(t, key, numberKey(key[0], n))
		} else {
			checkRefusal(t, err)
		}
	})
}

func checkKey(t *testing.T, read, written []byte) {
	t.Helper()
	if !bytes.Equal(read, written) {
		t.Errorf("%q is read as what is stored under %q", read, written)
	}
}
