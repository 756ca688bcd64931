package agent

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// The journal stores a work as the received spec event, with its tag and its revision. Behind an OCM broker a
// work has no revision. If the latest spec is unusable or a deletion has no spec, the data is the spec in force.
// These attributes exist on disk only.
const (
	entryName       = "hawsername"            // name of the work
	entryProblem    = "hawserproblem"         // why the latest spec cannot be used
	entryGeneration = "hawserforcegeneration" // of the spec in force, absent if there is none
	entryTag        = "hawserforcetag"        // of the spec in force
	entryID         = "entry"                 // id of such events
	entryUID        = "entry"                 // uid for an encoder that requires one

	// noRevision is the revision that former releases wrote for a work without one. No event has it.
	noRevision = "0"
)

// encodeEntry returns the journal event of a work.
func encodeEntry(w *desired.Work, now time.Time) (codec.Event, error) {
	work := workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Name: w.Name, Namespace: w.Cluster, UID: entryUID}}
	p := manifestwork.SpecParams{ID: entryID, Now: now, Source: w.Source, Action: codec.UpdateRequest}
	if w.Deleting {
		p.Action, p.DeletionWithData = codec.DeleteRequest, w.Spec != nil
	}
	if w.Spec != nil {
		work.Spec = *w.Spec
	}
	e, err := manifestwork.EncodeSpec(&work, p)
	if err != nil {
		return e, fmt.Errorf("journal entry of work %s: %w", w.Name, err)
	}
	if w.Spec == nil {
		e.DataEncoded = nil
	} else {
		e.SetExtension(entryGeneration, strconv.FormatInt(w.SpecGeneration, 10))
		e.SetExtension(entryTag, w.SpecTag.String())
	}
	e.SetExtension(codec.ExtResourceID, w.ResourceID)
	e.SetExtension(codec.ExtResourceVersion, int32(min(w.Version, math.MaxInt32)))
	if w.Revision > 0 {
		e.SetExtension(codec.ExtRevision, codec.FormatRevision(w.Revision))
	}
	e.SetExtension(codec.ExtTag, w.Tag.String())
	for name, value := range map[string]string{
		codec.ExtMetadata: w.Metadata, codec.ExtLogTracing: w.LogTracing, entryName: w.Name, entryProblem: w.Problem,
	} {
		e.SetExtension(name, nil)
		if value != "" {
			e.SetExtension(name, value)
		}
	}
	return e, nil
}

// decodeEntry is the inverse of encodeEntry, for this cluster. The error means that the entry is unusable.
func decodeEntry(e codec.Event, cluster string) (*desired.Work, error) {
	if e.Extensions()[codec.ExtRevision] == noRevision {
		e = e.Clone()
		e.SetExtension(codec.ExtRevision, nil)
	}
	spec, err := manifestwork.DecodeSpec(e)
	if err != nil && !errors.As(err, new(*manifestwork.InvalidError)) {
		return nil, err
	}
	if spec.Cluster != cluster {
		return nil, errors.New("the work is of cluster " + spec.Cluster)
	}
	w := &desired.Work{
		Ref: spec.Ref, Source: spec.Source, Version: spec.Version, Revision: spec.Revision, Tag: spec.Tag, Deleting: spec.Deleting,
	}
	var name, generation, tag string
	for attribute, into := range map[string]*string{entryName: &name, entryProblem: &w.Problem, entryGeneration: &generation, entryTag: &tag} {
		if *into, _, err = codec.StringExtension(e, attribute); err != nil {
			return nil, err
		}
	}
	if name != "" {
		w.Name = name
	}
	if generation == "" {
		if w.Problem == "" && !w.Deleting {
			return nil, errors.New("a work with neither a spec nor an error")
		}
		return w, nil
	}
	if !spec.HasData {
		return nil, errors.New("the spec is missing")
	}
	w.Labels, w.Spec = spec.Work.Labels, &spec.Work.Spec
	if w.SpecGeneration, err = strconv.ParseInt(generation, 10, 64); err != nil {
		return nil, fmt.Errorf("%s: %w", entryGeneration, err)
	}
	w.SpecTag, err = codec.ParseTag(tag)
	return w, err
}
