package codec

import (
	"cmp"
	"strconv"
	"strings"
)

// Session names one session of a Hawser client behind a stateless broker (see docs/protocol/README.md). Of two
// sessions of a client the later one has the higher number. The id distinguishes sessions with the same number.
type Session struct {
	Number uint64
	ID     string
}

// longestSessionID bounds the id of a session, in bytes; Hawser ids have 36 characters.
const longestSessionID = 64

// ParseSession reads "<number>.<id>". The error is an *AttributeError about name.
func ParseSession(name, text string) (Session, error) {
	number, id, ok := strings.Cut(text, ".")
	n, err := strconv.ParseUint(number, 10, 63)
	if !ok || err != nil || n == 0 || strconv.FormatUint(n, 10) != number || !isSessionID(id) {
		return Session{}, attributeError(name, text, "must be <number>.<id>")
	}
	return Session{Number: n, ID: id}, nil
}

func isSessionID(id string) bool {
	if id == "" || len(id) > longestSessionID {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-':
		default:
			return false
		}
	}
	return true
}

// String returns "<number>.<id>", or "" for the zero session.
func (s Session) String() string {
	if s == (Session{}) {
		return ""
	}
	return FormatRevision(s.Number) + "." + s.ID
}

// Compare returns a negative number if s is earlier than o, and a positive number if s is later.
func (s Session) Compare(o Session) int {
	return cmp.Or(cmp.Compare(s.Number, o.Number), strings.Compare(s.ID, o.ID))
}

// SessionExtension returns one of the attributes that name a session, or the zero session if it is absent. The
// error is an *AttributeError.
func SessionExtension(e Event, name string) (Session, error) {
	text, ok, err := StringExtension(e, name)
	if err != nil || !ok {
		return Session{}, err
	}
	return ParseSession(name, text)
}
