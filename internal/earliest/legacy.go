package earliest

import "cmp"

// formerIssuedAnnotation is [IssuedAnnotation] as releases before request-certificate-issued wrote it. It
// goes with the release after the first one that writes the new name: a CertificateSigningRequest lives
// for a day at most.
const formerIssuedAnnotation = "hawser.dev/asked-with-issued"

// IssuedOf returns the value of [IssuedAnnotation] among the annotations of a CertificateSigningRequest, ""
// if there is none.
func IssuedOf(annotations map[string]string) string {
	return cmp.Or(annotations[IssuedAnnotation], annotations[formerIssuedAnnotation])
}
