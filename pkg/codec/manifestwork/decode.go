package manifestwork

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Ref identifies a work to its source, as needed for a status event.
type Ref struct {
	ResourceID string
	// Name is the name of the work, or the resource id if its source gave none.
	Name    string
	Cluster string
	// Generation is the version of the work: resourceversion or, if that is 0, the generation in metadata.
	Generation int64
	// Metadata and LogTracing are the extensions as received; status events return them. Unreadable metadata
	// becomes "": the source could not read it in a status either, and would not see why the work is not
	// applied.
	Metadata   string
	LogTracing string
}

// Spec is a decoded spec event.
type Spec struct {
	Ref
	Source string // the sending source
	Action codec.Action
	// Version is resourceversion as sent; 0 is unversioned and never stale.
	Version   int64
	Deleting  bool
	DeletedAt time.Time // zero unless Deleting
	// HasData: Work.Spec contains the data of the event. A deletion may have no data; Work.Spec is then empty and
	// its delete options are unknown.
	HasData bool
	// Revision is assigned by the broker; 0 behind a stateless broker.
	Revision uint64
	// Tag is assigned by the broker, or computed from the event if the broker sent none.
	Tag codec.Tag
	// Work is the agent's copy: uid, namespace and generation come from the attributes, the other metadata from the
	// source. A work being deleted has a deletion timestamp and exactly the finalizer of ManifestWorks.
	Work *workv1.ManifestWork
}

// InvalidError reports why a known work cannot be applied as a whole. The agent accepts the version as received
// and reports the problem. A single bad manifest causes no InvalidError; the other manifests of its work can be
// applied.
type InvalidError struct {
	ResourceID, Name, Cluster string
	Version                   int64
	// Problem is one sentence for the condition of the work, without a final stop.
	Problem string
}

// Error names the work and the problem.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("work %s/%s (id %s, version %d) is invalid: %s", e.Cluster, e.Name, e.ResourceID, e.Version, e.Problem)
}

// DecodeSpec reads a spec event as an agent receives it. On success, and with an *InvalidError, the Spec is not
// nil. With any other error the Spec is nil; work or version is unknown. That error is a *codec.AttributeError.
//
// A deletion with unusable data returns an *InvalidError, with Deleting set and HasData not set. The agent
// applies it with the last known delete options.
func DecodeSpec(e codec.Event) (*Spec, error) {
	s, err := identify(e)
	if err != nil {
		return nil, err
	}
	var problem string
	meta, err := parseMetadata(s.Metadata)
	if err != nil {
		problem = err.Error()
	}
	s.adopt(meta)
	if s.Revision, s.Tag, err = hawserAttributes(e, s); err != nil {
		return nil, err
	}
	if problem != "" {
		s.Metadata = "" // after the tag, which covers the data as published
	}
	if !s.Deleting || len(e.Data()) > 0 {
		if p := s.readData(e); problem == "" {
			problem = p
		}
	}
	if problem == "" {
		return s, nil
	}
	return s, &InvalidError{ResourceID: s.ResourceID, Name: s.Name, Cluster: s.Cluster, Version: s.Version, Problem: problem}
}

// identify reads the attributes that each spec event needs.
func identify(e codec.Event) (*Spec, error) {
	t, err := eventType(e, codec.Spec)
	if err != nil {
		return nil, err
	}
	s := &Spec{Source: e.Source(), Action: t.Action}
	if s.ResourceID, err = required(e, codec.ExtResourceID); err != nil {
		return nil, err
	}
	if s.Cluster, err = required(e, codec.ExtClusterName); err != nil {
		return nil, err
	}
	if s.Version, err = version(e); err != nil {
		return nil, err
	}
	if s.DeletedAt, s.Deleting, err = codec.TimeExtension(e, codec.ExtDeletionTimestamp); err != nil {
		return nil, err
	}
	if s.Metadata, _, err = codec.StringExtension(e, codec.ExtMetadata); err != nil {
		return nil, err
	}
	s.LogTracing, _, err = codec.StringExtension(e, codec.ExtLogTracing)
	return s, err
}

func eventType(e codec.Event, sub codec.Subresource) (codec.EventType, error) {
	t, err := codec.ParseEventType(e.Type())
	if err != nil {
		return codec.EventType{}, err
	}
	if t.DataType != codec.ManifestBundles || t.Subresource != sub {
		return codec.EventType{}, &codec.AttributeError{Attribute: "type", Value: t.String(), Problem: fmt.Sprintf("must be %s.%s.<action>", codec.ManifestBundles, sub)}
	}
	return t, nil
}

func required(e codec.Event, name string) (string, error) {
	s, _, err := codec.StringExtension(e, name)
	if err == nil && s == "" {
		err = &codec.AttributeError{Attribute: name, Problem: "is required"}
	}
	return s, err
}

func version(e codec.Event) (int64, error) {
	v, ok, err := codec.VersionExtension(e)
	if err == nil && !ok {
		err = &codec.AttributeError{Attribute: codec.ExtResourceVersion, Problem: "is required, in a deletion too; 0 means unversioned"}
	}
	return v, err
}

func hawserAttributes(e codec.Event, s *Spec) (revision uint64, tag codec.Tag, err error) {
	if revision, err = codec.RevisionExtension(e, codec.ExtRevision); err != nil {
		return 0, tag, err
	}
	tag, ok, err := codec.TagExtension(e)
	if err == nil && !ok {
		tag = codec.TagOf(s.Deleting, s.Version, s.Metadata, e.Data())
	}
	return revision, tag, err
}

// adopt builds the agent's copy of the work.
func (s *Spec) adopt(meta metav1.ObjectMeta) {
	meta.UID = types.UID(s.ResourceID)
	meta.Namespace = s.Cluster
	meta.ResourceVersion = ""
	meta.Generation = trueVersion(s.Version, meta.Generation)
	meta.Name = cmp.Or(meta.Name, s.ResourceID)
	meta.DeletionTimestamp = nil
	if s.Deleting {
		t := metav1.NewTime(s.DeletedAt)
		meta.DeletionTimestamp = &t
		meta.Finalizers = []string{workv1.ManifestWorkFinalizer}
	}
	adoptLogTracing(&meta, s.LogTracing)
	s.Name, s.Generation = meta.Name, meta.Generation
	s.Work = &workv1.ManifestWork{
		TypeMeta:   metav1.TypeMeta{APIVersion: workv1.GroupVersion.String(), Kind: "ManifestWork"},
		ObjectMeta: meta,
	}
}

// readData fills Work.Spec and returns its problem, or "".
func (s *Spec) readData(e codec.Event) (problem string) {
	if len(e.Data()) == 0 {
		return "the event has no data; only a deletion may have none"
	}
	if !isJSON(e.DataContentType()) {
		return "the data must be " + codec.ContentTypeJSON
	}
	var a *codec.AttributeError
	if err := codec.CheckSpec(e.Data()); errors.As(err, &a) {
		return "the data " + a.Problem
	}
	var p specPayload
	if err := json.Unmarshal(e.Data(), &p); err != nil {
		return `the data must be the JSON object {"manifests":[...]} with the members of a ManifestWork spec`
	}
	s.HasData = true
	s.Work.Spec = workv1.ManifestWorkSpec{
		Workload:        workv1.ManifestsTemplate{Manifests: p.Manifests},
		DeleteOption:    p.DeleteOption,
		ManifestConfigs: p.ManifestConfigs,
		Executor:        p.Executor,
	}
	if s.Deleting {
		return "" // a work being deleted need not be valid
	}
	return checkManifests(p.Manifests)
}

// checkManifests applies the rules for a work as a whole and returns a problem, or "".
func checkManifests(manifests []workv1.Manifest) (problem string) {
	if len(manifests) == 0 {
		return "a work needs at least one manifest"
	}
	total := 0
	for i := range manifests {
		total += len(manifests[i].Raw)
	}
	if total > MaxManifestsSize {
		return fmt.Sprintf("the manifests are %d bytes long, more than the limit of %d; %s", total, MaxManifestsSize, cmp.Or(OneTooLarge(manifests, MaxManifestsSize), "split the work"))
	}
	for i := range manifests {
		if hasGenerateName(manifests[i].Raw) {
			return fmt.Sprintf("manifest %d has metadata.generateName; every manifest needs a fixed metadata.name", i)
		}
	}
	return ""
}

func hasGenerateName(raw []byte) bool {
	if !bytes.Contains(raw, []byte("generateName")) {
		return false // avoids parsing of most manifests
	}
	var object struct {
		Metadata struct {
			GenerateName string `json:"generateName"`
		} `json:"metadata"`
	}
	// A manifest that does not parse has no generateName; it gets its own condition later.
	return json.Unmarshal(raw, &object) == nil && object.Metadata.GenerateName != ""
}

// isJSON reports whether the content type is JSON. An empty one means JSON too.
func isJSON(contentType string) bool {
	if contentType == "" {
		return true
	}
	mt, _, err := mime.ParseMediaType(contentType)
	return err == nil && (mt == codec.ContentTypeJSON || mt == "text/json" || strings.HasSuffix(mt, "+json"))
}
