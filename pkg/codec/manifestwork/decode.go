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

// Ref identifies a work to its source: what a status event needs of it.
type Ref struct {
	ResourceID string
	// Name of the work; the resource id when its source gave none.
	Name    string
	Cluster string
	// Generation is the work's own version: resourceversion, or the generation
	// in metadata when that is 0.
	Generation int64
	// Metadata and LogTracing are the extensions as received; status events
	// send them back. Metadata that cannot be read is "": sources could not read
	// it either, and with it not why the work is not applied.
	Metadata   string
	LogTracing string
}

// Spec is a decoded spec event.
type Spec struct {
	Ref
	Source string // the source that sent it
	Action codec.Action
	// Version is resourceversion as sent; 0 is unversioned and never stale.
	Version   int64
	Deleting  bool
	DeletedAt time.Time // zero unless Deleting
	// HasData: Work.Spec is what the event says. A deletion may come without;
	// Work.Spec is empty then and says nothing about delete options.
	HasData bool
	// Revision is the broker's, 0 when the broker is a stock one.
	Revision uint64
	// Tag is the broker's, or computed from the event when it sent none.
	Tag codec.Tag
	// Work as the agent holds it: uid, namespace and generation are those of
	// the attributes, the rest of its metadata is its source's. A deleting work
	// has a deletion timestamp and exactly the finalizer of ManifestWorks.
	Work *workv1.ManifestWork
}

// InvalidError says why a work cannot be applied as a whole although it is
// known which work it is: its agent takes the version as received and reports
// the problem. A manifest that is bad by itself is no such error; the others
// of its work can be applied.
type InvalidError struct {
	ResourceID, Name, Cluster string
	Version                   int64
	// Problem is one sentence for the work's condition, without a final stop.
	Problem string
}

// Error names the work and the problem.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("work %s/%s (id %s, version %d) is invalid: %s", e.Cluster, e.Name, e.ResourceID, e.Version, e.Problem)
}

// DecodeSpec reads a spec event as an agent receives it. On success, and with
// an *InvalidError, the Spec is not nil. With any other error, an
// *codec.AttributeError, it is not known which version of which work the event
// is about, and the Spec is nil.
//
// A deletion with unusable data comes with an *InvalidError, with Deleting set
// and HasData not set: it is to be obeyed with the delete options last known.
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
		s.Metadata = "" // after the tag, which is made of what was published
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

// identify reads the attributes without which an event means nothing.
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
	if meta.Name == "" {
		meta.Name = s.ResourceID
	}
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

// readData fills Work.Spec and returns what is wrong with it, "" when nothing.
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
		return "" // what is to go need not be valid
	}
	return checkManifests(p.Manifests)
}

// checkManifests applies the rules that hold for a work as a whole.
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
		return false // spares most manifests the parsing
	}
	var object struct {
		Metadata struct {
			GenerateName string `json:"generateName"`
		} `json:"metadata"`
	}
	// One that does not parse has no such name; it gets its own condition later.
	return json.Unmarshal(raw, &object) == nil && object.Metadata.GenerateName != ""
}

// isJSON: no content type means JSON, too.
func isJSON(contentType string) bool {
	if contentType == "" {
		return true
	}
	mt, _, err := mime.ParseMediaType(contentType)
	return err == nil && (mt == codec.ContentTypeJSON || mt == "text/json" || strings.HasSuffix(mt, "+json"))
}
