package gpudriver

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// The device classes, by what their devices are. ExtendedResource is the name under which pods get a GPU without a claim of their own
// (KEP-5004).
const (
	ClassGPU         = Name
	ClassShared      = "shared." + Name
	ClassCut         = "cut." + Name
	ClassPartition   = "partition." + Name
	ClassAll         = "all." + Name
	ExtendedResource = "example.com/gpu"
)

// createClasses makes the device classes, where they are not there yet.
func createClasses(ctx context.Context, client kubernetes.Interface) error {
	ours := "device.driver == '" + Name + "'"
	classes := map[string]string{ClassAll: ours}
	for name, kind := range map[string]string{
		ClassGPU: typeGPU, ClassShared: typeShared, ClassCut: typeCut, ClassPartition: typePartition,
	} {
		classes[name] = fmt.Sprintf("%s && device.attributes['%s'].type == '%s'", ours, Name, kind)
	}
	for name, expression := range classes {
		class := &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceClassSpec{
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
			},
		}
		if name == ClassGPU {
			class.Spec.ExtendedResourceName = ptr.To(ExtendedResource)
		}
		_, err := client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create device class %s: %w", name, err)
		}
	}
	return nil
}
