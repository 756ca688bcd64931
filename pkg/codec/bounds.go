package codec

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
)

// MaxNameBytes bounds every name in an event that a broker takes: ids, types, sources,
// clusters, works, sequence ids and hashes. What is longer, or cannot be printed, is
// refused before it is kept, logged, or put into a message or a metric.
const MaxNameBytes = 1024

// maxAttributeName bounds the names of attributes; CloudEvents advises 20.
const maxAttributeName = 64

// CheckName says what keeps a text from being a name, nil if nothing does. The error is
// an *AttributeError about attribute.
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

// checkNames is CheckName for what the data of an event names.
func checkNames(texts ...string) error {
	for _, text := range texts {
		if err := CheckName("data", text); err != nil {
			return err
		}
	}
	return nil
}

// shown is a text for people as far as it may be shown: cut, and without what cannot be
// printed.
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

// foreignProblem is nameProblem for what is not ASCII.
func foreignProblem(text string) string {
	for _, c := range text {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return "must be printable"
		}
	}
	return ""
}

// fieldWeight is more than a field of a protobuf message takes once it is read, its
// text aside; most of it is of messages in messages.
const fieldWeight = 192

// PayloadBytes says, without reading it, how much memory the payload takes when it is
// read as a whole: that of a resync request or a sync event. Nobody reads others so;
// they are 0. A list is looked through: the error is that of DecodeVersions.
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

// weigh counts the fields of a message, and of what may be messages in it down to so
// many levels.
func weigh(message []byte, levels int) (n int) {
	n = len(message)
	for len(message) > 0 {
		_, payload, size, err := nextField(message)
		if err != nil {
			return n // whoever reads it comes no further either
		}
		n += fieldWeight
		if levels > 1 && payload != nil {
			n += weigh(payload, levels-1)
		}
		message = message[size:]
	}
	return n
}

// SyncEvent is the event as the functions that read sync events want it: type, content
// type and data, which it shares with the envelope.
func (env *Envelope) SyncEvent() Event {
	c := &event.EventContextV1{ID: env.ID, Type: env.RawType}
	if env.ContentType != "" {
		c.DataContentType = &env.ContentType
	}
	return Event{Context: c, DataEncoded: env.Data, DataBase64: true}
}
