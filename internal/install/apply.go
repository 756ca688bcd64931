package install

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// managedBy marks what this package put there. Nothing else is ever deleted.
const (
	managedBy   = "app.kubernetes.io/managed-by"
	managedByUs = "hawser"
)

// pause is the time between two looks at what is waited for.
const pause = 500 * time.Millisecond

// Installer brings hubs and clusters in line with plans.
type Installer struct {
	Client kubeclient.Client
	// List finds what earlier runs applied.
	List func(drift.Scope) drift.Source
	// Dry has what would be deleted said, and not deleted.
	Dry bool
	// Printf tells a person what is done, and what is waited for.
	Printf func(format string, args ...any)
}

// Apply applies a plan, waits until its programs run, applies what comes last, and
// deletes what an earlier run applied and the plan has no more. ctx ends the wait; the error says then what was not ready.
func (i Installer) Apply(ctx context.Context, p Plan) error {
	if err := i.put(ctx, p); err != nil {
		return err
	}
	for _, o := range p.Objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		if err := i.await(ctx, o, running); err != nil {
			return notRunningError{err, o.GetName()}
		}
	}
	if err := i.apply(ctx, p.Manager, p.Last); err != nil {
		return err
	}
	return i.prune(ctx, p)
}

// Put is Apply without waiting until programs run: an agent is ready only when the hub has let it
// in.
func (i Installer) Put(ctx context.Context, p Plan) error {
	if err := i.put(ctx, p); err != nil {
		return err
	}
	if err := i.apply(ctx, p.Manager, p.Last); err != nil {
		return err
	}
	return i.prune(ctx, p)
}

// put applies what does not come last.
func (i Installer) put(ctx context.Context, p Plan) error {
	// A program that starts before its certificate is there fails, and is started
	// again only after a while.
	programs := len(p.Objects)
	if n := slices.IndexFunc(p.Objects, func(o *unstructured.Unstructured) bool { return position(o.GetKind()) == len(order) }); n >= 0 {
		programs = n
	}
	if err := i.apply(ctx, p.Manager, p.Objects[:programs]); err != nil {
		return err
	}
	return i.apply(ctx, p.Manager, p.Objects[programs:])
}

// notRunningError is an error about the pods of a program.
type notRunningError struct {
	error
	program string
}

func (e notRunningError) Unwrap() error { return e.error }

// Hint says where to look.
func (e notRunningError) Hint() string {
	return "see why with: kubectl -n " + namespace + " describe pods -l app.kubernetes.io/name=" + e.program
}

// DryRun says what Apply would do.
func (i Installer) DryRun(ctx context.Context, p Plan) error {
	for _, o := range slices.Concat(p.Objects, p.Last) {
		have, err := get(ctx, i.Client, o)
		switch {
		case err != nil:
			return err
		case have == nil:
			i.Printf("%s would be created", nameOf(o))
		case left(o, have):
			i.Printf("%s would be left as it is", nameOf(o))
		default:
			i.Printf("%s would be applied", nameOf(o))
		}
	}
	gone, err := i.former(ctx, p)
	if err != nil {
		return err
	}
	for _, o := range gone {
		i.Printf("%s would be deleted: an earlier run made it, and it is not needed any more", nameOf(o))
	}
	return nil
}

func (i Installer) apply(ctx context.Context, manager string, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		have, err := get(ctx, i.Client, o)
		if err != nil {
			return err
		}
		if have != nil && left(o, have) {
			i.Printf("%s is there, and left as it is", nameOf(o))
			continue
		}
		ref, err := refOf(ctx, i.Client, o)
		if err != nil {
			return err
		}
		is, err := i.Client.ServerSideApply(ctx, ref.GroupVersionResource, o, kubeclient.FieldManager{Name: manager, Force: true})
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", nameOf(o), err)
		case have == nil:
			i.Printf("%s created", nameOf(o))
		case have.GetResourceVersion() == is.GetResourceVersion():
			i.Printf("%s unchanged", nameOf(o))
		default:
			i.Printf("%s changed", nameOf(o))
		}
		if o.GetKind() == "CustomResourceDefinition" {
			if err := i.await(ctx, o, established); err != nil {
				return err
			}
		}
	}
	return i.awaitCertificates(ctx, objects)
}

// awaitCertificates waits until cert-manager has filled the Secrets of Certificates.
func (i Installer) awaitCertificates(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		if o.GetKind() != certificateKind.Kind {
			continue
		}
		if err := i.await(ctx, o, issued); err != nil {
			return notIssuedError{err}
		}
		if err := hasAuthority(ctx, i.Client, o); err != nil {
			return err
		}
	}
	return nil
}

// notIssuedError is an error about what cert-manager has not made.
type notIssuedError struct{ error }

func (e notIssuedError) Unwrap() error { return e.error }

// Hint says where to look.
func (e notIssuedError) Hint() string {
	return "see why with: kubectl -n " + namespace + " describe certificate,certificaterequest; is the issuer there and ready?"
}

// left tells whether an object that is there is not changed: a definition or a
// namespace that somebody else made, a volume, which its owner may have made larger,
// and the authorities.
func left(o, have *unstructured.Unstructured) bool {
	switch o.GetKind() {
	case "PersistentVolumeClaim":
		return true
	case "Secret":
		return o.GetName() == authoritySecret || o.GetName() == signerSecret
	case "CustomResourceDefinition":
		return !ours(have)
	case "Namespace":
		return o.GetName() != namespace
	}
	return false
}

func ours(o *unstructured.Unstructured) bool { return o.GetLabels()[managedBy] == managedByUs }

// await waits until the object is as done wants it, which else says what is missing.
func (i Installer) await(ctx context.Context, o *unstructured.Unstructured, done func(*unstructured.Unstructured) string) error {
	output := ""
	for {
		have, err := get(ctx, i.Client, o)
		if err != nil && ctx.Err() == nil {
			return err
		}
		missing := "is not there"
		if have != nil {
			missing = done(have)
		}
		if missing == "" && err == nil {
			return nil
		}
		if missing != output && err == nil {
			output = missing
			i.Printf("waiting for %s: %s", nameOf(o), missing)
		}
		if !taskgroup.Sleep(ctx, pause) {
			return fmt.Errorf("waited for %s: it %s", nameOf(o), output)
		}
	}
}

// running says what a Deployment lacks of all its pods, at the version it has.
func running(o *unstructured.Unstructured) string {
	number := func(fields ...string) int64 {
		n, _, err := unstructured.NestedInt64(o.Object, fields...)
		if err != nil {
			return 0
		}
		return n
	}
	want := number("spec", "replicas")
	switch ready, updated := number("status", "availableReplicas"), number("status", "updatedReplicas"); {
	case number("status", "observedGeneration") < o.GetGeneration():
		return "has not been looked at by its controller"
	case updated < want:
		return fmt.Sprintf("has %d of %d pods of this version", updated, want)
	case ready < want:
		return fmt.Sprintf("has %d of %d pods ready", ready, want)
	case number("status", "replicas") > want:
		return "has pods of another version"
	}
	return ""
}

// established says whether a definition is served.
func established(o *unstructured.Unstructured) string {
	conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && err == nil && m["type"] == "Established" && m["status"] == "True" {
			return ""
		}
	}
	return "is not served yet"
}

// nameOf is how an object is called to a person, as kubectl does it.
func nameOf(o *unstructured.Unstructured) string {
	gvk := o.GroupVersionKind()
	name := strings.ToLower(gvk.Kind)
	if gvk.Group != "" {
		name += "." + gvk.Group
	}
	return name + "/" + o.GetName()
}
