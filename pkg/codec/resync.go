package codec

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ResourceVersion is one entry of a spec resync request: what an agent holds.
type ResourceVersion struct {
	ResourceID      string `json:"resourceID"`
	ResourceVersion int64  `json:"resourceVersion"`
	// Tag (32 hex digits) is added by Hawser agents, so that a change that did
	// not raise the version is found too. Stock parties ignore it.
	Tag string `json:"hawserTag,omitempty"`
}

// ResourceVersionList is the payload of a spec resync request.
type ResourceVersionList struct {
	Versions []ResourceVersion `json:"resourceVersions"`
}

// StatusHash is one entry of a status resync request: what a source holds.
type StatusHash struct {
	ResourceID string `json:"resourceID"`
	StatusHash string `json:"statusHash"`
}

// StatusHashList is the payload of a status resync request.
type StatusHashList struct {
	Hashes []StatusHash `json:"statusHashes"`
}

// ErrNoPayload is the error of a resync request without a body: it says
// nothing, not even that its sender holds nothing, as {} does.
var ErrNoPayload = errors.New("the resync request has no data; send at least {}")

// EncodeVersions returns the payload of a spec resync request. No versions
// become an empty list, never null.
func EncodeVersions(versions []ResourceVersion) ([]byte, error) {
	if versions == nil {
		versions = []ResourceVersion{}
	}
	return json.Marshal(ResourceVersionList{Versions: versions})
}

// DecodeVersions reads the payload of a spec resync request: what the agent
// holds, in its order, duplicates included. It returns ErrNoPayload for an
// empty body, and an *AttributeError about "data" for one that is not such a
// list.
func DecodeVersions(b []byte) ([]ResourceVersion, error) {
	var l ResourceVersionList
	if err := decodePayload(b, &l, "resourceVersions"); err != nil {
		return nil, err
	}
	for i, v := range l.Versions {
		if v.Tag == "" {
			continue
		}
		if _, err := ParseTag(v.Tag); err != nil {
			return nil, attributeError("data", v.Tag, fmt.Sprintf("resourceVersions[%d].hawserTag must be 32 lower-case hex digits", i))
		}
	}
	return l.Versions, nil
}

// EncodeHashes returns the payload of a status resync request. No hashes
// become an empty list, never null.
func EncodeHashes(hashes []StatusHash) ([]byte, error) {
	if hashes == nil {
		hashes = []StatusHash{}
	}
	return json.Marshal(StatusHashList{Hashes: hashes})
}

// DecodeHashes reads the payload of a status resync request; see
// DecodeVersions.
func DecodeHashes(b []byte) ([]StatusHash, error) {
	var l StatusHashList
	if err := decodePayload(b, &l, "statusHashes"); err != nil {
		return nil, err
	}
	return l.Hashes, nil
}

func decodePayload(b []byte, into any, member string) error {
	if len(b) == 0 {
		return ErrNoPayload
	}
	if err := json.Unmarshal(b, into); err != nil {
		return attributeError("data", "", `must be the JSON object {"`+member+`":[...]}`)
	}
	return nil
}

// ResyncParams is the envelope of a resync request.
type ResyncParams struct {
	ID   string
	Time time.Time
	// Source is who asks: an agent id or a source id.
	Source string
	// Cluster is the agent's cluster; in a request of a source, the cluster
	// that is asked, "" for all of them.
	Cluster string
	// OriginalSource is the source that an agent asks, "" for all of them, as
	// every stock agent does. A source leaves it empty.
	OriginalSource string
	DataType       DataType
}

// NewSpecResyncRequest builds an agent's request: these versions I hold, send
// what is newer.
func NewSpecResyncRequest(p ResyncParams, versions []ResourceVersion) (Event, error) {
	body, err := EncodeVersions(versions)
	if err != nil {
		return Event{}, fmt.Errorf("spec resync request: %w", err)
	}
	return p.event(Spec, body)
}

// NewStatusResyncRequest builds a source's request: these status hashes I
// hold, send what differs.
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

// ReportsDeleted reports whether the data of a status event carries the
// condition Deleted=True: the agent has removed everything. It is all that a
// broker must know of a status, and it looks at nothing but the type and the
// status of the top-level conditions. It returns an *AttributeError about
// "data" when the data is not a JSON object with conditions; no data reports
// nothing.
func ReportsDeleted(data []byte) (bool, error) {
	if len(data) == 0 {
		return false, nil
	}
	var body struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return false, attributeError("data", "", `must be the JSON object {"conditions":[...],...}`)
	}
	for _, c := range body.Conditions {
		if c.Type == ConditionDeleted {
			return c.Status == "True", nil // of two with one type the first counts
		}
	}
	return false, nil
}

// ConditionDeleted is the type of the condition with which an agent reports
// that a deleted work is gone from its cluster.
const ConditionDeleted = "Deleted"
