package agentstatus

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
)

// FuzzRow reads rows of any content: of a newer release, or damaged. A row that was read is written without a change.
func FuzzRow(f *testing.F) {
	for s := range numStates {
		value, err := json.Marshal(row{Replica: "a", Connection: Connection{State: s}, Former: []string{"b"}, Facts: Facts{Address: "c", Seen: time.Unix(1, 0)}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(value)
	}
	f.Add([]byte(`{"replica":"a","state":"StateOfANewerRelease","x":1}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		r := decodeRow(value)
		if r == nil {
			return
		}
		_ = r.State.String()
		again, err := json.Marshal(r)
		if err != nil {
			return // a time outside of RFC 3339
		}
		if third, err := json.Marshal(decodeRow(again)); err != nil || !bytes.Equal(again, third) {
			t.Errorf("%s is read again as %s, %v", again, third, err)
		}
	})
}
