package apply

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/kubeerror"
)

// definitionEnds is part of an API server's answer to the creation of an object whose definition is being
// deleted (k8s.io/apiextensions-apiserver, customresource_handler.go). The answer has no code or cause of its
// own.
const definitionEnds = "while custom resource definition is terminating"

// rejection is the server's answer to an invalid write: an immutable field, a value that is not allowed. With a
// refusal it depends on another object on the cluster.
type rejection struct {
	error
	hint    string
	refusal *Refusal
}

// Error returns the server's text with the next step.
func (r *rejection) Error() string {
	switch {
	case r.refusal == nil:
	case r.refusal.Missing:
		return r.error.Error() + hintNamespace
	case r.refusal.Namespace != "":
		return r.error.Error() + hintEnds
	case strings.Contains(r.error.Error(), definitionEnds):
		return r.error.Error() + hintKindEnds
	default:
		return r.error.Error() + hintRefused
	}
	return fmt.Sprintf("%v (this does not pass by itself: %s)", r.error, r.hint)
}

func (r *rejection) Unwrap() error { return r.error }

// Rejected reports whether the server rejected a write as invalid, or refused it. A retry is useless until the
// manifest, the object, the definition of its kind or the cause in [Refused] changes. A KnownState remembers it.
// A write with dropped fields counts as rejected.
func Rejected(err error) bool {
	return errors.As(err, new(*rejection)) || errors.As(err, new(*dropped))
}

// wrongInItself reports whether an error marks a write as invalid in any state of the cluster.
func wrongInItself(err error) bool {
	return kubeerror.Rejected(err) || apierrors.IsMethodNotSupported(err)
}

// reject remembers a write that would fail again.
func (r *Result) reject(owner Owner, f *fights) {
	if refusal, ok := r.refusalOf(); ok {
		r.rejectAs(&rejection{error: r.Err, refusal: &refusal}, owner, f)
	} else if wrongInItself(r.Err) {
		r.rejectAs(&rejection{error: r.Err, hint: r.hint()}, owner, f)
	}
}

func (r *Result) rejectAs(rejected *rejection, owner Owner, f *fights) {
	r.Err = rejected
	r.Known = KnownState{want: wanted(r.Manifest, owner), content: fingerprint(r.Live), rejection: rejected, fights: f}
}

// sameField maps a field that the server names to its alias in manifests with the same meaning.
var sameField = map[string]string{"spec.clusterIPs": "spec.clusterIP", "spec.clusterIPs[0]": "spec.clusterIP"}

// insists reports whether the server rejected a value of the manifest itself: a roleRef, the image of a Job.
// All strategies that change the object would send the same value, so another strategy does not help.
func (r *Result) insists() bool {
	var s apierrors.APIStatus
	if !errors.As(r.Err, &s) || s.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(s.Status().Details.Causes, func(c metav1.StatusCause) bool {
		field := c.Field
		if name, alias := sameField[field]; alias {
			field = name
		}
		want, has := valueAt(r.Object.Object, field)
		live, _ := valueAt(r.Live.Object, field)
		return has && c.Field != "" && !holds(live, want)
	})
}

// valueAt returns the value of a field that the server names, such as "spec.containers[0].image" or
// "metadata.labels[a.b/c]".
func valueAt(v any, path string) (any, bool) {
	for path != "" {
		name, rest := path, ""
		if inside, bracket := strings.CutPrefix(path, "["); bracket {
			name, rest, _ = strings.Cut(inside, "]")
		} else if end := strings.IndexAny(path, ".["); end >= 0 {
			name, rest = path[:end], path[end:]
		}
		path = strings.TrimPrefix(rest, ".")
		switch in := v.(type) {
		case map[string]any:
			next, has := in[name]
			if !has {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(in) {
				return nil, false
			}
			v = in[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// holds reports whether live has all values of want; live may have more, which the server filled in.
func holds(live, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		live, ok := live.(map[string]any)
		for field, w := range want {
			ok = ok && holds(live[field], w)
		}
		return ok
	case []any:
		live, ok := live.([]any)
		return ok && slices.EqualFunc(live, want, holds)
	}
	return apiequality.Semantic.DeepEqual(live, want)
}

// rejected reports whether the same write was rejected before for an object in the same state.
func (s *Step) rejected(owner Owner) bool {
	k := s.known
	return k.rejection != nil && k.want == wanted(s.Manifest, owner) && k.content == fingerprint(s.Live)
}

// fingerprint returns the hash of those parts of an object that may matter to the server's checks; o may be nil.
func fingerprint(o *unstructured.Unstructured) [sha256.Size]byte {
	if o == nil {
		return [sha256.Size]byte{}
	}
	state := maps.Clone(o.Object)
	delete(state, "status")
	if meta, ok := state["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		for _, field := range []string{"resourceVersion", "managedFields", "generation"} {
			delete(meta, field)
		}
		state["metadata"] = meta
	}
	b, err := json.Marshal(state)
	if err != nil {
		// Unstructured content came from JSON and always marshals.
		panic(fmt.Sprintf("marshal %s: %v", o.GetName(), err))
	}
	return sha256.Sum256(b)
}
