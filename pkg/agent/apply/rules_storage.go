package apply

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// defaultClassAnno says whether a storage class is the default; whoever
// administers the cluster has the last word on that.
const defaultClassAnno = "storageclass.kubernetes.io/is-default-class"

var (
	storageClasses = typed[storagev1.StorageClass]{
		[]string{"provisioner", "parameters", "reclaimPolicy", "volumeBindingMode", "mountOptions", "allowVolumeExpansion", "allowedTopologies"},
		completeStorageClass,
	}
	// storageClassIdentity is what the server never changes.
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

// csiDriverRule: a hash of the manifest's spec in an annotation says whether the
// manifest changed; another spec is another object. What others did to the live
// spec stays.
func csiDriverRule() rule {
	return rule{
		prepare: func(want *unstructured.Unstructured) error {
			// As it stands: the hash is about the manifest, without defaults.
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
