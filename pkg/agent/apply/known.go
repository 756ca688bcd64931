package apply

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// knownFormat is part of the hash in a KnownState. A new number invalidates the remembered state of earlier
// processes. Format 0 treated an object as wanted although fields of its manifest had been dropped.
const knownFormat = 1

// Retry returns k without a rejection, or with due set for dropped fields, so that the write is retried.
func (k KnownState) Retry() KnownState {
	if k.rejection != nil {
		return KnownState{want: k.want, fights: k.fights}
	}
	k.due = k.dropped != nil
	return k
}

// Incomplete reports whether the cluster accepted the write but did not keep all fields of the manifest.
func (k KnownState) Incomplete() bool { return k.dropped != nil }

// missing returns the error of an object that lacks fields that the server does not know.
func (k KnownState) missing() error {
	if k.dropped == nil || len(k.dropped.Unknown) == 0 {
		return nil
	}
	return k.dropped
}

// Missing returns the fields of the manifest that the object lacks although the server accepted them without a
// warning.
func (k KnownState) Missing() []string {
	if k.dropped == nil {
		return nil
	}
	return k.dropped.Silent
}

var textOfHashes = base64.RawStdEncoding.Strict()

// droppedSeparator precedes the dropped fields, which are in JSON.
const droppedSeparator = "\n"

// Text encodes k for a later process, without a rejection; ParseKnown decodes it.
func (k KnownState) Text() string {
	s := string(k.UID) + textOfHashes.EncodeToString(append(k.want[:], k.content[:]...))
	if k.dropped == nil {
		return s
	}
	b, err := json.Marshal(k.dropped)
	if err != nil {
		panic("marshal names of fields: " + err.Error()) // texts always marshal
	}
	return s + droppedSeparator + string(b)
}

// ParseKnown decodes the result of Text. ok is false for another text.
func ParseKnown(s string) (k KnownState, ok bool) {
	text, fields, incomplete := strings.Cut(s, droppedSeparator)
	n := len(text) - textOfHashes.EncodedLen(len(k.want)+len(k.content))
	if n <= 0 {
		return KnownState{}, false
	}
	hashes, err := textOfHashes.DecodeString(text[n:])
	if err != nil || len(hashes) != len(k.want)+len(k.content) { // base64 decoding would skip line ends
		return KnownState{}, false
	}
	k.UID = types.UID(text[:n])
	copy(k.want[:], hashes)
	copy(k.content[:], hashes[len(k.want):])
	if incomplete {
		if k.dropped = new(dropped); json.Unmarshal([]byte(fields), k.dropped) != nil || k.Text() != s {
			return KnownState{}, false
		}
	}
	return k, true
}
