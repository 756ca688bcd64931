package apply

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

// dropped has the fields of a manifest that the cluster did not keep although it accepted the write. The object
// is then not as wanted, however often it is compared.
type dropped struct {
	// Unknown lists the fields that the server reported as unknown, for instance because its schema lacks them.
	Unknown []string `json:"unknown,omitempty"`
	// Silent are the fields that were missing in the answer without a warning. Another program on the cluster
	// removes them, or a feature is disabled.
	Silent []string `json:"silent,omitempty"`
}

// maxDropped bounds the named fields per kind of drop, maxPath the length of a name in bytes.
const (
	maxDropped = 10
	maxPath    = 256
)

// Error names the missing fields.
func (d *dropped) Error() string {
	text := fmt.Sprintf("the cluster does not know %s, and dropped what it does not know; all else was applied", strings.Join(d.Unknown, ", "))
	if len(d.Silent) > 0 {
		text += fmt.Sprintf(", but %s is missing, too", strings.Join(d.Silent, ", "))
	}
	return text + " (correct the manifest, or the definition of the kind on the cluster: it is tried again when that changes, and about every hour)"
}

// add adds the name of a field.
func add(list *[]string, path string) {
	switch n := len(*list); {
	case n < maxDropped && len(path) <= maxPath:
		*list = append(*list, path)
	case n < maxDropped:
		*list = append(*list, strings.ToValidUTF8(path[:maxPath], "")+"…")
	case n == maxDropped:
		*list = append(*list, "…")
	}
}

// droppedFrom compares a manifest with the answer to its write. sent is the sent object, unknown the fields
// that the server reported as unknown. It returns nil if no field is missing. Only missing fields count: the
// server, a webhook or a controller may set another value. Metadata and status belong to the server and do not
// count.
func droppedFrom(manifest, sent, answer map[string]any, unknown []string) *dropped {
	c := comparison{unknown: unknown}
	for _, name := range slices.Sorted(maps.Keys(sent)) {
		switch name {
		case "apiVersion", "kind", "metadata", "status":
		case "stringData": // of a Secret; the server moves it to data
		default:
			c.field(name, name, manifest, sent, answer)
		}
	}
	if len(c.Unknown)+len(c.Silent) == 0 {
		return nil
	}
	return &c.dropped
}

// comparison walks through the sent object.
type comparison struct {
	dropped
	unknown []string
	// unpaired counts the items above that have no match in the answer. A field below may exist nevertheless,
	// unless the server reported it as unknown.
	unpaired int
}

// field compares one field of maps.
func (c *comparison) field(path, name string, manifest, sent, answer map[string]any) {
	want, wanted := manifest[name]
	value := sent[name]
	if !wanted || want == nil || value == nil {
		return
	}
	if got, has := answer[name]; has && got != nil {
		c.value(path, want, value, got)
		return
	}
	known := true
	for _, u := range c.unknown {
		if within(u, path) {
			known = false
			add(&c.Unknown, u)
		}
	}
	if known && c.unpaired == 0 && !blank(value) {
		add(&c.Silent, path)
	}
}

// within reports whether a path equals another one or is below it.
func within(path, of string) bool {
	rest, ok := strings.CutPrefix(path, of)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

func (c *comparison) value(path string, want, sent, answer any) {
	switch sent := sent.(type) {
	case map[string]any:
		want, ok := want.(map[string]any)
		got, same := answer.(map[string]any)
		if !ok || !same && c.unpaired == 0 {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(sent)) {
			c.field(path+"."+name, name, want, sent, got)
		}
	case []any:
		want, ok := want.([]any)
		got, same := answer.([]any)
		if ok && len(want) == len(sent) && (same || c.unpaired > 0) {
			c.items(path, want, sent, got)
		}
	}
}

func (c *comparison) items(path string, want, sent, got []any) {
	for i, item := range sent {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch counterpart, found := counterpartOf(item, i, got, len(got) == len(sent)); {
		case found:
			c.value(at, want[i], item, counterpart)
		case c.unpaired == 0 && isGone(item, got):
			add(&c.Silent, at)
		default:
			c.unpaired++
			c.value(at, want[i], item, nil)
			c.unpaired--
		}
	}
}

// counterpartOf returns the item of the answer that matches a sent item. Items with a name match by name,
// others by index if no item was added or removed.
func counterpartOf(item any, i int, got []any, aligned bool) (any, bool) {
	name := nameOf(item)
	if name == "" && aligned || name != "" && i < len(got) && nameOf(got[i]) == name {
		return got[i], true
	}
	at := slices.IndexFunc(got, func(g any) bool { return name != "" && nameOf(g) == name })
	if at < 0 {
		return nil, false
	}
	return got[at], true
}

// isGone reports whether an item without a match is missing in the answer: it and all items of the answer have
// names.
func isGone(item any, got []any) bool {
	return nameOf(item) != "" && len(got) > 0 && !slices.ContainsFunc(got, func(g any) bool { return nameOf(g) == "" })
}

// nameOf returns the name of an item; "" if it has none.
func nameOf(item any) string {
	m, _ := item.(map[string]any)
	name, _ := m["name"].(string)
	return name
}

// blank reports whether a value may mean the same as an absent one.
func blank(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			if !blank(e) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	case int64:
		return v == 0
	case float64:
		return v == 0
	}
	return v == nil || v == "" || v == false
}

// dropped returns the fields that the cluster did not keep from the step's write. If the step wrote only
// metadata and the content is unchanged, the same fields are missing as before.
func (s *Step) dropped(written *unstructured.Unstructured, content [sha256.Size]byte, unknown []string, owner Owner) *dropped {
	var d *dropped
	if s.body != nil && s.Action != Unchanged {
		d = droppedFrom(s.Object.Object, s.body.Object, written.Object, unknown)
	}
	if d == nil && s.same(owner, content) {
		return s.known.dropped
	}
	return d
}

// Accepted reports whether the write succeeded; dropped fields are ignored.
func (r *Result) Accepted() bool { return r.Err == nil || r.Known.Incomplete() }

// retries reports whether the object is as the last write of this manifest left it, and is written again only
// because of dropped fields.
func (s *Step) retries(owner Owner) bool {
	return s.known.due && s.Live != nil && s.same(owner, s.digest(s.Live, s.view.kept))
}

// asBefore returns the result of a failed retry: the object is unchanged. A Job, for example, cannot be written
// again.
func (s *Step) asBefore() Result {
	k := s.known
	k.due = false
	return Result{Manifest: s.Manifest, Action: s.Action, Err: k.missing(), Live: s.Live, Presence: conditions.Present, Known: k, Retried: true, Shared: s.view.shared}
}
