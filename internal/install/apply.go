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

// managedBy marks the objects of this package. No other object is ever deleted.
const (
	managedBy   = "app.kubernetes.io/managed-by"
	managedByUs = "hawser"
)

// pause is the poll interval of waits.
const pause = 500 * time.Millisecond

// Installer applies plans to hubs and clusters.
type Installer struct {
	Client kubeclient.Client
	// List finds the objects that earlier runs applied.
	List func(drift.Scope) drift.Source
	// Dry: print deletions and do not perform them.
	Dry bool
	// Printf prints what is done and what is awaited.
	Printf func(format string, args ...any)
}

// Apply applies a plan and waits until its programs run. Then it applies the last objects, and deletes objects
// of an earlier run that the plan no longer has. ctx bounds the wait; the error then contains what was not
// ready.
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

// Put is Apply without waiting for the programs: an agent is ready only when the hub has accepted it.
func (i Installer) Put(ctx context.Context, p Plan) error {
	if err := i.put(ctx, p); err != nil {
		return err
	}
	if err := i.apply(ctx, p.Manager, p.Last); err != nil {
		return err
	}
	return i.prune(ctx, p)
}

// put applies the objects of the plan except the last ones.
func (i Installer) put(ctx context.Context, p Plan) error {
	// A program that starts before its certificate exists fails, and is restarted only after a delay.
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

// Hint returns where to look.
func (e notRunningError) Hint() string {
	return "see why with: kubectl -n " + namespace + " describe pods -l app.kubernetes.io/name=" + e.program
}

// DryRun prints what Apply would do.
func (i Installer) DryRun(ctx context.Context, p Plan) error {
	for _, o := range slices.Concat(p.Objects, p.Last) {
		have, err := get(ctx, i.Client, o)
		switch {
		case err != nil:
			return err
		case have == nil:
			i.Printf("%s would be created", nameOf(o))
		case left(o, have):
			i.Printf("%s would not be changed", nameOf(o))
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
			i.Printf("%s exists and is not changed", nameOf(o))
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

// notIssuedError reports Certificates that cert-manager has not issued.
type notIssuedError struct{ error }

func (e notIssuedError) Unwrap() error { return e.error }

// Hint returns where to look.
func (e notIssuedError) Hint() string {
	return "see why with: kubectl -n " + namespace + " describe certificate,certificaterequest; check that the issuer exists and is ready"
}

// left reports whether an existing object stays as it is. Such objects are definitions and namespaces of
// others, CAs, and volumes, which the owner may have enlarged.
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

// await waits until done returns "" for the object; done returns what is missing.
func (i Installer) await(ctx context.Context, o *unstructured.Unstructured, done func(*unstructured.Unstructured) string) error {
	output := ""
	for {
		have, err := get(ctx, i.Client, o)
		if err != nil && ctx.Err() == nil {
			return err
		}
		missing := "does not exist"
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

// running returns what a Deployment lacks until all its pods run at the current version, or "".
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
		return "has not been processed by its controller"
	case updated < want:
		return fmt.Sprintf("has %d of %d pods of this version", updated, want)
	case ready < want:
		return fmt.Sprintf("has %d of %d pods ready", ready, want)
	case number("status", "replicas") > want:
		return "has pods of another version"
	}
	return ""
}

// established returns "" if a definition is served, else what is missing.
func established(o *unstructured.Unstructured) string {
	conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && err == nil && m["type"] == "Established" && m["status"] == "True" {
			return ""
		}
	}
	return "is not served yet"
}

// nameOf returns the name of an object for display, in kubectl's form.
func nameOf(o *unstructured.Unstructured) string {
	gvk := o.GroupVersionKind()
	name := strings.ToLower(gvk.Kind)
	if gvk.Group != "" {
		name += "." + gvk.Group
	}
	return name + "/" + o.GetName()
}
