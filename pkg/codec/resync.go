package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// ResourceVersion is one entry of a spec resync request: a work that the agent holds.
type ResourceVersion struct {
	ResourceID      string `json:"resourceID"`
	ResourceVersion int64  `json:"resourceVersion"`
	// Tag (32 hex digits) is set by Hawser agents. It reveals a change that did not increase the version. OCM
	// clients ignore it.
	Tag string `json:"hawserTag,omitempty"`
}

// ResourceVersionList is the payload of a spec resync request.
type ResourceVersionList struct {
	Versions []ResourceVersion `json:"resourceVersions"`
}

// StatusHash is one entry of a status resync request: a status that the source holds.
type StatusHash struct {
	ResourceID string `json:"resourceID"`
	StatusHash string `json:"statusHash"`
}

// StatusHashList is the payload of a status resync request.
type StatusHashList struct {
	Hashes []StatusHash `json:"statusHashes"`
}

// ErrNoPayload is the error of a resync request without a body. A sender that holds nothing sends {}.
var ErrNoPayload = errors.New("the resync request has no data; send at least {}")

// MaxListed is the maximum number of entries of one resync request.
const MaxListed = 1 << 17

// EncodeVersions returns the payload of a spec resync request. Without versions it contains an empty list,
// never null.
func EncodeVersions(versions []ResourceVersion) ([]byte, error) {
	if versions == nil {
		versions = []ResourceVersion{}
	}
	return json.Marshal(ResourceVersionList{Versions: versions})
}

// DecodeVersions reads the payload of a spec resync request: the works that the agent holds. It keeps order and
// duplicates. It returns ErrNoPayload for an empty body. It returns an *AttributeError about "data" for an
// invalid list, more than [MaxListed] entries, or an entry without an id.
func DecodeVersions(b []byte) (list []ResourceVersion, err error) {
	return decodeList(b, versionMembers, func(e *listed) ResourceVersion {
		return ResourceVersion{ResourceID: string(e.id), ResourceVersion: e.version, Tag: string(e.text)}
	})
}

// EncodeHashes returns the payload of a status resync request. Without hashes it contains an empty list, never
// null.
func EncodeHashes(hashes []StatusHash) ([]byte, error) {
	if hashes == nil {
		hashes = []StatusHash{}
	}
	return json.Marshal(StatusHashList{Hashes: hashes})
}

// DecodeHashes reads the payload of a status resync request; see
// DecodeVersions.
func DecodeHashes(b []byte) ([]StatusHash, error) {
	return decodeList(b, hashMembers, func(e *listed) StatusHash {
		return StatusHash{ResourceID: string(e.id), StatusHash: string(e.text)}
	})
}

// Names of the list, and of the members of an entry: id, text, version.
var (
	versionMembers = []string{"resourceVersions", "resourceID", "hawserTag", "resourceVersion"}
	hashMembers    = []string{"statusHashes", "resourceID", "statusHash"}
)

// listed is one entry of a resync request; its slices alias the input.
type listed struct {
	id, text []byte
	version  int64
}

// decodeList reads a list twice: first to measure, then to decode. So it allocates only the needed memory, and
// none for a rejected list.
func decodeList[T any](b []byte, members []string, make1 func(e *listed) T) (list []T, err error) {
	entries, _, err := measureList(b, members)
	if err != nil || entries == 0 {
		return nil, err
	}
	list = make([]T, 0, entries)
	err = eachListed(b, members, func(e *listed) error {
		list = append(list, make1(e))
		return nil
	})
	return list, err
}

// entryBytes is the memory of one list entry during a comparison, in bytes, without its texts.
const entryBytes = 160

// measureList returns the number of entries and the memory that they need, in bytes.
func measureList(b []byte, members []string) (entries, bytes int, err error) {
	if len(b) == 0 {
		return 0, 0, ErrNoPayload
	}
	err = eachListed(b, members, func(e *listed) error {
		if entries++; entries > MaxListed {
			return atMost(MaxListed, "entries")
		}
		bytes += entryBytes + len(e.id) + len(e.text)
		return e.check(members)
	})
	return entries, bytes, problemWith("data", `must be the JSON object {"`+members[0]+`":[...]}`, err)
}

func (e *listed) check(members []string) error {
	if len(e.id) == 0 {
		return jsonError("has an entry without " + members[1])
	}
	if len(members) > 3 && len(e.text) > 0 {
		if _, err := ParseTag(string(e.text)); err != nil {
			return jsonError("has a " + members[2] + " that is not 32 lower-case hex digits")
		}
	}
	return nil
}

// eachListed calls f for each entry.
func eachListed(b []byte, members []string, f func(e *listed) error) error {
	var e listed
	return readObject(b, members[:1], func(r *jsonReader, _ int) error {
		return r.list(func() error {
			e = listed{}
			err := r.object(members[1:], func(member int) (err error) {
				switch member {
				case 0:
					e.id, err = r.name(members[1])
				case 1:
					e.text, err = r.name(members[2])
				default:
					e.version, err = r.integer()
				}
				return err
			})
			if err != nil {
				return err
			}
			return f(&e)
		})
	})
}

// ResyncParams is the envelope of a resync request.
type ResyncParams struct {
	ID   string
	Time time.Time
	// Source is the sender: an agent id or a source id.
	Source string
	// Cluster is the agent's cluster. In a request of a source it is the requested cluster, "" for all.
	Cluster string
	// OriginalSource is the source that an agent requests specs from, "" for all, as OCM agents always send. A
	// source leaves it empty.
	OriginalSource string
	DataType       DataType
}

// NewSpecResyncRequest builds the request of an agent. It lists the versions that the agent holds and requests
// newer ones.
func NewSpecResyncRequest(p ResyncParams, versions []ResourceVersion) (Event, error) {
	body, err := EncodeVersions(versions)
	if err != nil {
		return Event{}, fmt.Errorf("spec resync request: %w", err)
	}
	return p.event(Spec, body)
}

// NewStatusResyncRequest builds the request of a source. It lists the status hashes that the source holds and
// requests the statuses that differ.
func NewStatusResyncRequest(p ResyncParams, hashes []StatusHash) (Event, error) {
	body, err := EncodeHashes(hashes)
	if err != nil {
		return Event{}, fmt.Errorf("status resync request: %w", err)
	}
	return p.event(Status, body)
}

func (p *ResyncParams) event(sub Subresource, body []byte) (Event, error) {
	return Builder{
		ID:             p.ID,
		Time:           p.Time,
		Source:         p.Source,
		Type:           EventType{DataType: p.DataType, Subresource: sub, Action: ResyncRequest}.String(),
		Cluster:        p.Cluster,
		OriginalSource: p.OriginalSource,
		ContentType:    ContentTypeJSON,
		Data:           body,
	}.Event()
}

// StatusSummary is the part of a status that a broker needs.
type StatusSummary struct {
	// Deleted: the agent has removed all objects.
	Deleted bool
	// Applied and Available are the statuses of these conditions, "" if absent.
	Applied, Available string
	// Message is the message of the condition that is False, Applied before Available. Otherwise it is that of a
	// condition about a slow agent or contested objects. It is "" if none applies. For a work that is being deleted
	// it names what blocks the deletion. It has at most [MaxSummaryBytes].
	Message string
}

// MaxSummaryBytes bounds the message of a [StatusSummary], in bytes. Hawser agents write no longer messages in
// a condition of a work.
const MaxSummaryBytes = 1 << 10

// Fails reports whether the work is not applied or not available.
func (v *StatusSummary) Fails() bool {
	return v.Applied == conditionFalse || v.Available == conditionFalse
}

// ReportsDeleted reports whether the data of a status event has the condition Deleted=True; see [SummaryOf].
func ReportsDeleted(data []byte) (deleted bool, err error) {
	v, err := SummaryOf(data)
	return v.Deleted, err
}

// SummaryOf reads the top-level conditions in the data of a status event. It returns an *AttributeError about
// "data" if the data is not a JSON object with conditions, or exceeds the limits of a status. Empty data gives
// an empty summary.
func SummaryOf(data []byte) (v StatusSummary, err error) {
	if len(data) == 0 {
		return StatusSummary{}, nil
	}
	r := &jsonReader{b: data, counts: true, remainingValues: MaxParts}
	conditions, found := 0, [len(summaryConditions)]condition{}
	err = r.object(statusMembers, func(int) error {
		return r.list(func() error {
			if conditions++; conditions > MaxConditions {
				return atMost(MaxConditions, "conditions")
			}
			c, err := r.condition()
			for i, of := range summaryConditions {
				if found[i].of == "" && c.of == of { // the first of one type counts
					found[i] = c
				}
			}
			return err
		})
	})
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return StatusSummary{}, problemWith("data", `must be the JSON object {"conditions":[...],...}`, err)
	}
	v = StatusSummary{Deleted: found[0].status == conditionTrue, Applied: found[2].status, Available: found[3].status}
	for i, c := range found[1:] {
		if c.status == summaryTrouble[i+1] {
			if v.Message = c.message(); v.Message == deletionGoesOn {
				v.Message = ""
			}
			break
		}
	}
	return v, nil
}

// condition is one condition; raw is its message between the quotes, still escaped.
type condition struct {
	of, status string
	raw        []byte
}

// message is the beginning of the message, in printable characters.
func (c *condition) message() string {
	end := 0
	for size := 0; end < len(c.raw); {
		width, bytes := 1, 1 // in raw, and at most in the text
		if c.raw[end] == '\\' {
			if width = 2; end+1 < len(c.raw) && c.raw[end+1] == 'u' {
				width, bytes = 6, 3
			}
		}
		if size += bytes; size > MaxSummaryBytes {
			break
		}
		end += width
	}
	text, ok := unquote(c.raw[:end])
	if !ok {
		return ""
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return -1
		case unicode.IsPrint(r):
			return r
		}
		return ' '
	}, text)
}

func (r *jsonReader) condition() (c condition, err error) {
	err = r.object(conditionMembers, func(member int) (err error) {
		switch member {
		case 0:
			c.of, err = r.text()
		case 1:
			c.status, err = r.text()
		default:
			if !r.null() {
				c.raw, err = r.quoted()
			}
		}
		return err
	})
	return c, err
}

// CheckSpec returns an *AttributeError about "data" if the data of a spec event needs too much memory to
// decode, else nil. It does not check whether the data is a valid work.
func CheckSpec(data []byte) error {
	r := &jsonReader{b: data, counts: true, remainingValues: MaxParts}
	manifests := 0
	err := r.object(specMembers, func(int) error {
		r.counts = false // manifests are kept as raw bytes
		err := r.list(func() error {
			if manifests++; manifests > MaxManifests {
				return atMost(MaxManifests, "manifests")
			}
			return r.skip()
		})
		r.counts, r.remainingValues = true, MaxParts
		return err
	})
	return problemWith("data", `must be the JSON object {"manifests":[...],...}`, err)
}

var (
	statusMembers, conditionMembers = []string{"conditions"}, []string{"type", "status", "message"}
	specMembers                     = []string{"manifests"}
)

// Limits of works and statuses.
const (
	// MaxManifests is the maximum number of manifests of a work.
	MaxManifests = 10_000
	// MaxConditions is the maximum number of conditions of a work, without those of its manifests.
	MaxConditions = 1000
	// MaxParts is the maximum number of objects and lists in a status, and in a work outside of its manifests. Each
	// needs far more memory than its JSON has bytes.
	MaxParts = 1 << 17
)

// summaryConditions are the condition types that a [StatusSummary] is made of, in its order.
var summaryConditions = [...]string{ConditionDeleted, "Deleting", "Applied", "Available", "ReconcileSlow", "Contested"}

// summaryTrouble are the statuses of these conditions whose message is shown.
var summaryTrouble = [len(summaryConditions)]string{"", conditionTrue, conditionFalse, conditionFalse, conditionTrue, conditionTrue}

// deletionGoesOn is the agent's message for a work that is being deleted while nothing blocks that.
const deletionGoesOn = "ManifestWork is being deleted"

// Statuses of conditions.
const (
	conditionTrue  = "True"
	conditionFalse = "False"
)

// ConditionDeleted is the type of the condition with which an agent reports that a deleted work is gone from
// its cluster.
const ConditionDeleted = "Deleted"
