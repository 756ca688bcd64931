package codec

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// MaxOrphanReport is how many records an Unexplained has, and maxOrphanReportText
// the length of each of their texts.
const (
	MaxOrphanReport     = 100
	maxOrphanReportText = 512
)

// OrphanReport tells the broker what is on a cluster and no work explains.
type OrphanReport struct {
	Records []OrphanRecord
	More    uint64 // besides
}

// OrphanRecord is one AppliedManifestWork that is nobody's or, if Shared, is
// another hub's and has objects of this one's works.
type OrphanRecord struct {
	UID, Name string
	Created   time.Time // zero if not known
	Objects   uint64
	Shared    bool
	Outcome   string // why it could not be resolved; "" if nobody tried
}

// ResolveOrphan tells an agent what is to become of an AppliedManifestWork that is
// nobody's: the work of its name has it, or it goes with its objects.
type ResolveOrphan struct {
	UID, Name string
	Adopt     bool
}

// NewOrphanReport builds the event of an Unexplained.
func NewOrphanReport(p SyncParams, u OrphanReport) (Event, error) {
	m := &hawserv1.OrphanReport{More: u.More}
	for _, r := range u.Records {
		pr := &hawserv1.OrphanRecord{Uid: r.UID, Name: r.Name, Objects: r.Objects, Shared: r.Shared, Outcome: r.Outcome}
		if !r.Created.IsZero() {
			pr.Created = timestamppb.New(r.Created)
		}
		m.Records = append(m.Records, pr)
	}
	return p.event(TypeOrphanReport, m)
}

// ParseOrphanReport reads the event of an Unexplained; see ParseCheckpoint.
func ParseOrphanReport(e Event) (OrphanReport, error) {
	var m hawserv1.OrphanReport
	if err := syncPayload(e, TypeOrphanReport, &m); err != nil {
		return OrphanReport{}, err
	}
	if n := len(m.GetRecords()); n > MaxOrphanReport {
		return OrphanReport{}, attributeError("data", "", fmt.Sprintf("has %d records, at most %d are taken", n, MaxOrphanReport))
	}
	u := OrphanReport{More: m.GetMore()}
	for _, r := range m.GetRecords() {
		if r.GetUid() == "" || r.GetName() == "" || max(len(r.GetUid()), len(r.GetName()), len(r.GetOutcome())) > maxOrphanReportText {
			return OrphanReport{}, attributeError("data", "", fmt.Sprintf("a record needs uid and name, and no text of more than %d bytes", maxOrphanReportText))
		}
		if err := checkNames(r.GetUid(), r.GetName()); err != nil {
			return OrphanReport{}, err
		}
		next := OrphanRecord{UID: r.GetUid(), Name: r.GetName(), Objects: r.GetObjects(), Shared: r.GetShared(), Outcome: shown(r.GetOutcome())}
		if r.GetCreated() != nil {
			if r.GetCreated().CheckValid() != nil {
				return OrphanReport{}, attributeError("data", "", "a record has a time that is none")
			}
			next.Created = r.GetCreated().AsTime()
		}
		u.Records = append(u.Records, next)
	}
	return u, nil
}

// NewResolveOrphan builds the event of a Resolve.
func NewResolveOrphan(p SyncParams, r ResolveOrphan) (Event, error) {
	return p.event(TypeResolveOrphan, &hawserv1.ResolveOrphan{Uid: r.UID, Name: r.Name, Adopt: r.Adopt})
}

// ParseResolveOrphan reads the event of a Resolve; see ParseCheckpoint.
func ParseResolveOrphan(e Event) (ResolveOrphan, error) {
	var m hawserv1.ResolveOrphan
	if err := syncPayload(e, TypeResolveOrphan, &m); err != nil {
		return ResolveOrphan{}, err
	}
	if m.GetUid() == "" || m.GetName() == "" {
		return ResolveOrphan{}, attributeError("data", "", "needs uid and name")
	}
	if err := checkNames(m.GetUid(), m.GetName()); err != nil {
		return ResolveOrphan{}, err
	}
	return ResolveOrphan{UID: m.GetUid(), Name: m.GetName(), Adopt: m.GetAdopt()}, nil
}
