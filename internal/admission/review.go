package admission

import (
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
)

// reviews contains the one supported version.
var reviews = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := admissionv1.AddToScheme(s); err != nil {
		panic(err) // two types of one name, which no input can cause
	}
	return s
}()

var serializer = json.NewSerializerWithOptions(json.DefaultMetaFactory, reviews, reviews, json.SerializerOptions{})

// Decode reads an AdmissionReview, JSON of version admission.k8s.io/v1. The request has a UID. An error
// describes what is wrong with body; then no review can answer it.
func Decode(body []byte) (*admissionv1.AdmissionRequest, error) {
	o, _, err := serializer.Decode(body, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("no AdmissionReview of %s: %w", admissionv1.SchemeGroupVersion, err)
	}
	review, ok := o.(*admissionv1.AdmissionReview)
	if !ok || review.Request == nil || review.Request.UID == "" {
		return nil, errors.New("no AdmissionReview with a request and its uid")
	}
	return review.Request, nil
}

// Response is the answer to a request.
type Response struct {
	// Status is why the work is refused, nil if it is admitted.
	Status   *metav1.Status
	Warnings []string
}

// Refused returns the response for a work that breaks a rule: 400, BadRequest.
func Refused(problem string, warnings []string) Response {
	status := apierrors.NewBadRequest(problem).Status()
	return Response{Status: &status, Warnings: warnings}
}

// Unanswered returns the response if the hub did not answer an access review: 500, InternalError. The same
// request may be admitted a moment later.
func Unanswered(err error) Response {
	status := apierrors.NewInternalError(err).Status()
	return Response{Status: &status}
}

// Encode writes the review that answers the request with this UID.
func Encode(uid types.UID, v Response) ([]byte, error) {
	return runtime.Encode(serializer, &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: &admissionv1.AdmissionResponse{UID: uid, Allowed: v.Status == nil, Result: v.Status, Warnings: v.Warnings},
	})
}
