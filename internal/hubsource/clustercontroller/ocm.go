package clustercontroller

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Mode says whether the package does anything.
type Mode string

// The modes.
const (
	// Off: something else looks after the members.
	Off Mode = "off"
	// On: nothing else does, whatever runs on the hub.
	On Mode = "on"
	// Auto is On, and Off as long as Open Cluster Management's registration controllers are
	// found on the hub.
	Auto Mode = "auto"
)

const (
	// OCMNamespace is where Open Cluster Management has its registration controllers.
	OCMNamespace = "open-cluster-management-hub"
	// OCMDeployment is what runs them there.
	OCMDeployment = "cluster-manager-registration-controller"
	// OCMLease is held by the one of them that works.
	OCMLease = "registration-controller-lock"
)

const (
	// lookForOCM is how often they are looked for.
	lookForOCM = 5 * time.Minute
	// ocmDisconnectedAfter is for how long their Lease may be silent: an upgrade takes a while.
	ocmDisconnectedAfter = 10 * time.Minute
)

// ocmShownBy says by what Open Cluster Management's controllers are known to run, "" if nothing
// shows it. Both may be nil.
func ocmShownBy(d *appsv1.Deployment, l *coordinationv1.Lease, now time.Time) string {
	if d != nil && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0) {
		return fmt.Sprintf("Deployment %s/%s", OCMNamespace, OCMDeployment)
	}
	if l != nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != "" && l.Spec.RenewTime != nil && now.Sub(l.Spec.RenewTime.Time) < ocmDisconnectedAfter {
		return fmt.Sprintf("Lease %s/%s", OCMNamespace, OCMLease)
	}
	return ""
}

// FindOCM says by what Open Cluster Management's registration controllers are known to run on the hub,
// "" if nothing shows it.
func FindOCM(ctx context.Context, kube kubernetes.Interface) (shownBy string, err error) {
	d, err := kube.AppsV1().Deployments(OCMNamespace).Get(ctx, OCMDeployment, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		d, err = nil, nil
	}
	if err != nil {
		return "", err
	}
	l, err := kube.CoordinationV1().Leases(OCMNamespace).Get(ctx, OCMLease, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		l, err = nil, nil
	}
	if err != nil {
		return "", err
	}
	return ocmShownBy(d, l, time.Now()), nil
}
