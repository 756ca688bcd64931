package codec

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// MaxOrphanReport is the maximum number of records in an OrphanReport. maxOrphanReportText bounds each of their
// texts, in bytes.
const (
	MaxOrphanReport     = 100
	maxOrphanReportText = 512
)

// OrphanReport reports orphan AppliedManifestWorks of a cluster to the broker.
type OrphanReport struct {
	Records []OrphanRecord
	More    uint64 // number of further records
}

// OrphanRecord is one AppliedManifestWork without a work. If Shared, it belongs to another hub and has objects
// of this hub's works.
type OrphanRecord struct {
	UID, Name string
	Created   time.Time // zero if not known
	Objects   uint64
	Shared    bool
	Outcome   string // why resolving failed; "" if it was not tried
}

// ResolveOrphan requests that an agent resolves an orphan AppliedManifestWork. Adopt: the work of its name
// takes it over. Otherwise it is removed with its objects.
type ResolveOrphan struct {
	UID, Name string
	Adopt     bool
}

// NewOrphanReport builds the event of an OrphanReport.
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

// ParseOrphanReport reads the event of an OrphanReport; see ParseCheckpoint.
func ParseOrphanReport(e Event) (OrphanReport, error) {
	var m hawserv1.OrphanReport
	if err := syncPayload(e, TypeOrphanReport, &m); err != nil {
		return OrphanReport{}, err
	}
	if n := len(m.GetRecords()); n > MaxOrphanReport {
		return OrphanReport{}, attributeError("data", "", fmt.Sprintf("has %d records, at most %d are accepted", n, MaxOrphanReport))
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
				return OrphanReport{}, attributeError("data", "", "a record has an invalid time")
			}
			next.Created = r.GetCreated().AsTime()
		}
		u.Records = append(u.Records, next)
	}
	return u, nil
}

// NewResolveOrphan builds the event of a ResolveOrphan.
func NewResolveOrphan(p SyncParams, r ResolveOrphan) (Event, error) {
	return p.event(TypeResolveOrphan, &hawserv1.ResolveOrphan{Uid: r.UID, Name: r.Name, Adopt: r.Adopt})
}

// ParseResolveOrphan reads the event of a ResolveOrphan; see ParseCheckpoint.
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
