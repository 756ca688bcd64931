package codec

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// MaxUnexplained is how many records an Unexplained has, and maxUnexplainedText
// the length of each of their texts.
const (
	MaxUnexplained     = 100
	maxUnexplainedText = 512
)

// Unexplained tells the broker what is on a cluster and no work explains.
type Unexplained struct {
	Records []UnexplainedRecord
	More    uint64 // besides
}

// UnexplainedRecord is one AppliedManifestWork that is nobody's or, if Shared, is
// another hub's and has objects of this one's works.
type UnexplainedRecord struct {
	UID, Name string
	Created   time.Time // zero if not known
	Objects   uint64
	Shared    bool
	Outcome   string // why it could not be resolved; "" if nobody tried
}

// Resolve tells an agent what is to become of an AppliedManifestWork that is
// nobody's: the work of its name has it, or it goes with its objects.
type Resolve struct {
	UID, Name string
	Adopt     bool
}

// NewUnexplained builds the event of an Unexplained.
func NewUnexplained(p SyncParams, u Unexplained) (Event, error) {
	m := &hawserv1.Unexplained{More: u.More}
	for _, r := range u.Records {
		pr := &hawserv1.UnexplainedRecord{Uid: r.UID, Name: r.Name, Objects: r.Objects, Shared: r.Shared, Outcome: r.Outcome}
		if !r.Created.IsZero() {
			pr.Created = timestamppb.New(r.Created)
		}
		m.Records = append(m.Records, pr)
	}
	return p.event(TypeUnexplained, m)
}

// ParseUnexplained reads the event of an Unexplained; see ParseCheckpoint.
func ParseUnexplained(e Event) (Unexplained, error) {
	var m hawserv1.Unexplained
	if err := syncPayload(e, TypeUnexplained, &m); err != nil {
		return Unexplained{}, err
	}
	if n := len(m.GetRecords()); n > MaxUnexplained {
		return Unexplained{}, attributeError("data", "", fmt.Sprintf("has %d records, at most %d are taken", n, MaxUnexplained))
	}
	u := Unexplained{More: m.GetMore()}
	for _, r := range m.GetRecords() {
		if r.GetUid() == "" || r.GetName() == "" || max(len(r.GetUid()), len(r.GetName()), len(r.GetOutcome())) > maxUnexplainedText {
			return Unexplained{}, attributeError("data", "", fmt.Sprintf("a record needs uid and name, and no text of more than %d bytes", maxUnexplainedText))
		}
		if err := checkNames(r.GetUid(), r.GetName()); err != nil {
			return Unexplained{}, err
		}
		next := UnexplainedRecord{UID: r.GetUid(), Name: r.GetName(), Objects: r.GetObjects(), Shared: r.GetShared(), Outcome: shown(r.GetOutcome())}
		if r.GetCreated() != nil {
			if r.GetCreated().CheckValid() != nil {
				return Unexplained{}, attributeError("data", "", "a record has a time that is none")
			}
			next.Created = r.GetCreated().AsTime()
		}
		u.Records = append(u.Records, next)
	}
	return u, nil
}

// NewResolve builds the event of a Resolve.
func NewResolve(p SyncParams, r Resolve) (Event, error) {
	return p.event(TypeResolve, &hawserv1.Resolve{Uid: r.UID, Name: r.Name, Adopt: r.Adopt})
}

// ParseResolve reads the event of a Resolve; see ParseCheckpoint.
func ParseResolve(e Event) (Resolve, error) {
	var m hawserv1.Resolve
	if err := syncPayload(e, TypeResolve, &m); err != nil {
		return Resolve{}, err
	}
	if m.GetUid() == "" || m.GetName() == "" {
		return Resolve{}, attributeError("data", "", "needs uid and name")
	}
	if err := checkNames(m.GetUid(), m.GetName()); err != nil {
		return Resolve{}, err
	}
	return Resolve{UID: m.GetUid(), Name: m.GetName(), Adopt: m.GetAdopt()}, nil
}
