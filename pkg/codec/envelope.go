package codec

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Envelope holds all fields that a broker reads from an event. Data aliases the input of ParseEnvelope, except
// in structured mode.
type Envelope struct {
	ID     string
	Source string
	// RawType is the type attribute. Type is its parsed form; it is zero for types outside the grammar
	// (TypeHeartbeat and the sync events).
	RawType string
	Type    EventType
	Time    time.Time // zero when absent

	Cluster        string // clustername; "" when absent or empty
	OriginalSource string // originalsource; "" when absent or empty
	ResourceID     string
	// Version is the resourceversion of a data type that has a row. It is never negative; 0 means unversioned.
	Version    int64
	HasVersion bool
	Deleting   bool      // deletiontimestamp is present
	DeletedAt  time.Time // value of deletiontimestamp
	SequenceID string    // a decimal number, or "" when absent or empty
	StatusHash string

	// These fields are from the metadata extension; zero if it is absent.
	HasMetadata bool
	RawMetadata string
	ObjectName  string
	ObjectNS    string
	ObjectUID   string
	ObjectGen   int64 // generation; the full value if Version is 0 because it did not fit

	Revision     uint64 // hawserrevision, 0 when absent
	Tag          Tag    // hawsertag, zero when absent
	HasTag       bool
	Supersedes   uint64 // hawsersupersedes, 0 when absent
	IfRevision   uint64 // hawserifrevision, 0 when absent
	NeedsConfirm bool   // hawserneedsconfirm
	Fence        uint64 // hawserfence, 0 when absent

	ContentType string
	Data        []byte // nil when there is none
}

// ParseEnvelope reads the envelope from the protobuf bytes of an event, without decoding its data. It accepts a
// subset of the input of Unmarshal, and both read an event alike. The attributes that a broker acts upon must
// have the right type. The type must match the grammar or be one of the other known types; the data type need
// not be served.
//
// Numbers and times may have text form, as clients on text-only transports send them: a resourceversion "7.9"
// is 7.
//
// The error is an *AttributeError or wraps ErrMalformed.
func ParseEnvelope(b []byte) (Envelope, error) {
	w, err := parse(b)
	if err != nil {
		return Envelope{}, err
	}
	env, err := w.envelope()
	if err != nil {
		return Envelope{}, err
	}
	return *env, nil
}

// Incoming is a parsed event that aliases its input.
type Incoming struct{ w *wireEvent }

// Ingest is ParseEnvelope plus Normalize for an event that the broker may store. The envelope comes first, so
// rejected events are not copied. It is returned by pointer, because a copy would grow the stack of each
// publish.
func Ingest(b []byte) (*Envelope, Incoming, error) {
	w, err := parse(b)
	if err != nil {
		return nil, Incoming{}, err
	}
	env, err := w.envelope()
	if err != nil {
		return nil, Incoming{}, err
	}
	return env, Incoming{w}, nil
}

// Normalized returns the event to store, in memory of its own. Call it at most once, while the input of Ingest
// is valid.
func (i Incoming) Normalized() ([]byte, error) { return i.w.normalized() }

func (w *wireEvent) envelope() (*Envelope, error) {
	env := &Envelope{
		ID:          string(w.id),
		Source:      string(w.source),
		RawType:     string(w.typ),
		ContentType: string(w.contentType.bytes),
		Data:        w.data,
	}
	if w.time.kind != 0 {
		env.Time = w.time.time()
	}
	if !outsideGrammar(env.RawType) {
		t, err := ParseEventType(env.RawType)
		if err != nil {
			return nil, err
		}
		env.Type = t
	}
	for i := range w.attributes {
		if err := env.set(&w.attributes[i]); err != nil {
			return nil, err
		}
	}
	return env, env.checkNames()
}

// checkNames rejects names that are too long or not printable.
func (env *Envelope) checkNames() error {
	for _, n := range [...]struct{ attribute, text string }{
		{"id", env.ID}, {"source", env.Source}, {"type", env.RawType}, {"datacontenttype", env.ContentType},
		{ExtClusterName, env.Cluster}, {ExtOriginalSource, env.OriginalSource}, {ExtResourceID, env.ResourceID},
		{ExtSequenceID, env.SequenceID}, {ExtStatusHash, env.StatusHash},
	} {
		if err := CheckName(n.attribute, n.text); err != nil {
			return err
		}
	}
	return nil
}

// set copies one known extension to the envelope; a broker ignores the others.
func (env *Envelope) set(a *attribute) (err error) {
	switch string(a.name) {
	case ExtClusterName:
		env.Cluster, err = a.text()
	case ExtOriginalSource:
		env.OriginalSource, err = a.text()
	case ExtResourceID:
		env.ResourceID, err = a.text()
	case ExtResourceVersion:
		env.Version, env.HasVersion, err = a.version(env.Type.DataType)
	case ExtDeletionTimestamp:
		env.Deleting = true
		env.DeletedAt, err = a.time()
	case ExtSequenceID:
		if env.SequenceID, err = a.text(); err == nil && env.SequenceID != "" {
			_, err = parseSequence(env.SequenceID)
		}
	case ExtStatusHash:
		env.StatusHash, err = a.text()
	case ExtMetadata:
		if a.value.kind != fieldString {
			return attributeError(ExtMetadata, "", "must be a string")
		}
		err = env.readMetadata(a.value.bytes)
	default:
		err = env.setOwn(a)
	}
	return err
}

// setOwn copies Hawser's own attributes to the envelope.
func (env *Envelope) setOwn(a *attribute) (err error) {
	switch string(a.name) {
	case ExtRevision:
		env.Revision, err = a.revision()
	case ExtSupersedes:
		env.Supersedes, err = a.revision()
	case ExtIfRevision:
		env.IfRevision, err = a.revision()
	case ExtFence:
		env.Fence, err = a.revision()
	case ExtNeedsConfirm:
		var s string
		if s, err = a.text(); err == nil && s != "true" {
			err = attributeError(ExtNeedsConfirm, s, "must be \"true\" where it is set")
		}
		env.NeedsConfirm = err == nil
	case ExtTag:
		var s string
		if s, err = a.text(); err == nil {
			env.Tag, err = ParseTag(s)
			env.HasTag = err == nil
		}
	}
	return err
}

// readMetadata reads the broker's fields of RawMetadata. An empty text counts as {}. It matches member names as
// all Go receivers of this protocol do. A duplicate member is an error, so that broker and receivers read the
// same name.
func (env *Envelope) readMetadata(text []byte) error {
	env.HasMetadata, env.RawMetadata = true, string(text)
	if len(text) == 0 {
		return nil
	}
	err := readObject(text, metadataMembers, func(r *jsonReader, member int) (err error) {
		to := &env.ObjectName
		switch member {
		case 0:
			env.ObjectGen, err = r.integer()
			return err
		case 2:
			to = &env.ObjectNS
		case 3:
			to = &env.ObjectUID
		}
		name, err := r.name(metadataMembers[member])
		*to = string(name)
		return err
	})
	if err == nil && env.ObjectGen < 0 {
		return attributeError(ExtMetadata, "", "its generation must not be negative")
	}
	return problemWith(ExtMetadata, "must be the JSON of a Kubernetes ObjectMeta", err)
}

var metadataMembers = []string{"generation", "name", "namespace", "uid"}

func (a *attribute) text() (string, error) {
	if a.value.kind != fieldString {
		return "", attributeError(string(a.name), "", "must be a string")
	}
	return string(a.value.bytes), nil
}

// revision returns the value of a numeric Hawser attribute: a positive uint64 in decimal text. CloudEvents
// integers have only 32 bits.
func (a *attribute) revision() (uint64, error) {
	s, err := a.text()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, attributeError(string(a.name), s, "must be a positive decimal number in text form")
	}
	return n, nil
}

// version returns the resourceversion in the form of the data type. ok is false for a type without a row,
// because its form is unknown.
func (a *attribute) version(d DataType) (v int64, ok bool, err error) {
	row, served := Lookup(d)
	if !served {
		return 0, false, nil
	}
	if row.Version == VersionInteger {
		v, err = a.integer()
	} else {
		v, err = a.decimal()
	}
	if err == nil && v < 0 {
		err = attributeError(string(a.name), strconv.FormatInt(v, 10), "must not be negative")
	}
	if err != nil {
		return 0, false, err
	}
	return v, true, nil
}

func (a *attribute) integer() (int64, error) {
	switch a.value.kind {
	case fieldInteger:
		return a.value.num, nil
	case fieldString:
		n, err := parseInteger(string(a.name), string(a.value.bytes))
		return int64(n), err
	}
	return 0, attributeError(string(a.name), "", "must be an integer")
}

func (a *attribute) decimal() (int64, error) {
	s, err := a.text()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, attributeError(string(a.name), s, "must be a decimal number in text form")
	}
	return n, nil
}

// parseInteger reads the text form of a CloudEvents integer: a decimal number. A fraction or exponent is cut
// off.
func parseInteger(name, text string) (int32, error) {
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		return int32(n), nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.Trim(text, "0123456789+-.eE") != "" {
		return 0, attributeError(name, text, "must be an integer")
	}
	if f > math.MaxInt32 || f < math.MinInt32 {
		return 0, attributeError(name, text, "must be an integer of 32 bits; a version above 2147483647 is sent as 0 with the true one as generation in metadata")
	}
	return int32(f), nil
}
