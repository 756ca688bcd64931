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

// Mode decides whether the package is active.
type Mode string

// The modes.
const (
	// Off: another controller manages the clusters.
	Off Mode = "off"
	// On: this package manages the clusters, whatever runs on the hub.
	On Mode = "on"
	// Auto is Off while the registration controllers of Open Cluster Management are found on the hub, otherwise On.
	Auto Mode = "auto"
)

const (
	// OCMNamespace is the namespace of the registration controllers of Open Cluster Management.
	OCMNamespace = "open-cluster-management-hub"
	// OCMDeployment is the Deployment that runs them.
	OCMDeployment = "cluster-manager-registration-controller"
	// OCMLease is the leader election Lease of these controllers.
	OCMLease = "registration-controller-lock"
)

const (
	// lookForOCM is the pause between two searches for them.
	lookForOCM = 5 * time.Minute
	// ocmDisconnectedAfter is how long their Lease may stay without a renewal: an upgrade takes some time.
	ocmDisconnectedAfter = 10 * time.Minute
)

// ocmShownBy returns the name of the object that shows that these controllers run, "" if none does. Both
// arguments may be nil.
func ocmShownBy(d *appsv1.Deployment, l *coordinationv1.Lease, now time.Time) string {
	if d != nil && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0) {
		return fmt.Sprintf("Deployment %s/%s", OCMNamespace, OCMDeployment)
	}
	if l != nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != "" && l.Spec.RenewTime != nil && now.Sub(l.Spec.RenewTime.Time) < ocmDisconnectedAfter {
		return fmt.Sprintf("Lease %s/%s", OCMNamespace, OCMLease)
	}
	return ""
}

// FindOCM returns the name of the object that shows that the registration controllers of Open Cluster
// Management run on the hub, "" if none does.
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
