package apply

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// defaultClassAnno marks the default storage class. The administrator of the cluster decides about it.
const defaultClassAnno = "storageclass.kubernetes.io/is-default-class"

var (
	storageClasses = typed[storagev1.StorageClass]{
		[]string{"provisioner", "parameters", "reclaimPolicy", "volumeBindingMode", "mountOptions", "allowVolumeExpansion", "allowedTopologies"},
		completeStorageClass,
	}
	// storageClassIdentity has the immutable fields.
	storageClassIdentity = typed[storagev1.StorageClass]{[]string{"provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"}, completeStorageClass}
	csiDrivers           = typed[storagev1.CSIDriver]{[]string{"spec"}, completeCSIDriver}
)

func completeStorageClass(c *storagev1.StorageClass) {
	fill(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	fill(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
}

func storageClassRule() rule {
	r := storageClasses.rule()
	r.carry = carryDefaultClass
	r.recreate = func(live, want *unstructured.Unstructured) bool { return !storageClassIdentity.same(live, want) }
	return r
}

func carryDefaultClass(want, live *unstructured.Unstructured) {
	v, has := live.GetAnnotations()[defaultClassAnno]
	if !has {
		return
	}
	annotations := want.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[defaultClassAnno] = v
	delete(annotations, defaultClassAnno+removeSuffix)
	want.SetAnnotations(annotations)
}

func completeCSIDriver(d *storagev1.CSIDriver) {
	s := &d.Spec
	fill(&s.AttachRequired, true)
	fill(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	for _, no := range []**bool{&s.PodInfoOnMount, &s.StorageCapacity, &s.RequiresRepublish, &s.SELinuxMount, &s.PreventPodSchedulingIfMissing} {
		fill(no, false)
	}
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}

// csiDriverRule detects a changed manifest by a hash of its spec in an annotation. A changed spec requires a
// new object. Changes of the live spec by others stay.
func csiDriverRule() rule {
	return rule{
		prepare: func(want *unstructured.Unstructured) error {
			// Unmodified: the hash is of the manifest without defaults.
			d, _, err := typed[storagev1.CSIDriver]{fields: csiDrivers.fields}.read(want)
			if err != nil {
				return err
			}
			return noteSpec(want, d.Spec)
		},
		recreate: func(live, want *unstructured.Unstructured) bool {
			return live.GetAnnotations()[specHashAnno] != want.GetAnnotations()[specHashAnno] && !csiDrivers.same(live, want)
		},
	}
}
