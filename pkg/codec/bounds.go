package codec

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
)

// MaxNameBytes (1024) bounds each name in an event that a broker accepts: ids, types, sources, clusters, works,
// sequence ids and hashes. A longer or unprintable name is rejected before it is stored, logged, or put into a
// message or a metric.
const MaxNameBytes = 1024

// maxAttributeName bounds the names of attributes, in bytes. CloudEvents advises 20.
const maxAttributeName = 64

// CheckName returns an *AttributeError about attribute if text is no valid name, else nil.
func CheckName(attribute, text string) error {
	if p := nameProblem(text); p != "" {
		return attributeError(attribute, text, p)
	}
	return nil
}

func nameProblem[T string | []byte](text T) string {
	if len(text) > MaxNameBytes {
		return "must not be longer than " + strconv.Itoa(MaxNameBytes) + " bytes"
	}
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' {
			return foreignProblem(string(text[i:]))
		}
	}
	return ""
}

// checkNames calls CheckName for names in the data of an event.
func checkNames(texts ...string) error {
	for _, text := range texts {
		if err := CheckName("data", text); err != nil {
			return err
		}
	}
	return nil
}

// shown returns text in printable form: cut to maxShownValue, without unprintable characters.
func shown(text string) string {
	if nameProblem(text) == "" {
		return text
	}
	text = strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, text[:min(len(text), 2*MaxNameBytes)])
	for len(text) > MaxNameBytes {
		_, last := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-last]
	}
	return text
}

// foreignProblem is nameProblem for text that is not ASCII.
func foreignProblem(text string) string {
	for _, c := range text {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return "must be printable"
		}
	}
	return ""
}

// fieldWeight is an upper bound, in bytes, of the memory for one decoded protobuf field without its text.
// Nested messages need most of it.
const fieldWeight = 192

// PayloadBytes returns the memory, in bytes, that the decoded payload of a resync request or sync event needs.
// It does not decode the payload. Other events return 0, because the broker does not decode their payload. The
// error is that of [DecodeVersions] for a list.
func (env *Envelope) PayloadBytes() (n int, err error) {
	switch {
	case outsideGrammar(env.RawType):
		return weigh(env.Data, 3), nil
	case env.Type.Action != ResyncRequest:
		return 0, nil
	case env.Type.Subresource == Spec:
		_, n, err = measureList(env.Data, versionMembers)
	default:
		_, n, err = measureList(env.Data, hashMembers)
	}
	return n, err
}

// weigh counts the fields of a message and, up to the given number of levels, of fields that may be nested
// messages.
func weigh(message []byte, levels int) (n int) {
	n = len(message)
	for len(message) > 0 {
		_, payload, size, err := nextField(message)
		if err != nil {
			return n // a decoder stops here too
		}
		n += fieldWeight
		if levels > 1 && payload != nil {
			n += weigh(payload, levels-1)
		}
		message = message[size:]
	}
	return n
}

// SyncEvent returns the event for the functions that read sync events: type, content type and data. The data is
// shared with the envelope.
func (env *Envelope) SyncEvent() Event {
	c := &event.EventContextV1{ID: env.ID, Type: env.RawType}
	if env.ContentType != "" {
		c.DataContentType = &env.ContentType
	}
	return Event{Context: c, DataEncoded: env.Data, DataBase64: true}
}
