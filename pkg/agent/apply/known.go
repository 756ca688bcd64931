package apply

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// knownFormat is part of what a Known is about. After a new number the memory of earlier
// processes does not count: format 0 called an object as it should be although fields of the manifest had
// been dropped.
const knownFormat = 1

// Retry is k without a rejection, so that the write is tried again, or with the order to try again what
// was dropped.
func (k Known) Retry() Known {
	if k.rejection != nil {
		return Known{want: k.want, fights: k.fights}
	}
	k.due = k.dropped != nil
	return k
}

// Incomplete reports whether the cluster accepted the write, and did not keep all fields of the manifest.
func (k Known) Incomplete() bool { return k.dropped != nil }

// missing is the error of an object that lacks fields that the server does not know.
func (k Known) missing() error {
	if k.dropped == nil || len(k.dropped.Unknown) == 0 {
		return nil
	}
	return k.dropped
}

// Missing are the fields of the manifest that the object lacks although the server accepted them
// without a word.
func (k Known) Missing() []string {
	if k.dropped == nil {
		return nil
	}
	return k.dropped.Silent
}

var textOfHashes = base64.RawStdEncoding.Strict()

// droppedSeparator stands before the fields that were dropped, in JSON.
const droppedSeparator = "\n"

// Text is k for a later process, without a rejection; ParseKnown reads it.
func (k Known) Text() string {
	s := string(k.UID) + textOfHashes.EncodeToString(append(k.want[:], k.content[:]...))
	if k.dropped == nil {
		return s
	}
	b, err := json.Marshal(k.dropped)
	if err != nil {
		panic("marshal names of fields: " + err.Error()) // text always marshals
	}
	return s + droppedSeparator + string(b)
}

// ParseKnown reads what Text returned. ok is false if s is something else.
func ParseKnown(s string) (k Known, ok bool) {
	text, fields, incomplete := strings.Cut(s, droppedSeparator)
	n := len(text) - textOfHashes.EncodedLen(len(k.want)+len(k.content))
	if n <= 0 {
		return Known{}, false
	}
	hashes, err := textOfHashes.DecodeString(text[n:])
	if err != nil || len(hashes) != len(k.want)+len(k.content) { // line ends are skipped
		return Known{}, false
	}
	k.UID = types.UID(text[:n])
	copy(k.want[:], hashes)
	copy(k.content[:], hashes[len(k.want):])
	if incomplete {
		if k.dropped = new(dropped); json.Unmarshal([]byte(fields), k.dropped) != nil || k.Text() != s {
			return Known{}, false
		}
	}
	return k, true
}
