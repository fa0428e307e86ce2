package replay

import "math"

// A Mean is the mean of a number over many runs, and its 95 % interval.
type Mean struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	Runs int     `json:"runs"`
}

// MeanOf returns the mean of the values and its interval by Student's t. Of a single
// value the interval is the value.
func MeanOf(values []float64) Mean {
	n := len(values)
	if n == 0 {
		return Mean{}
	}
	var sum float64
	for _, v := range values {
		sum += v
	}
	mean := sum / float64(n)
	m := Mean{Mean: mean, Low: mean, High: mean, Runs: n}
	if n < 2 {
		return m
	}
	var squares float64
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	half := student(n-1) * math.Sqrt(squares/float64(n-1)/float64(n))
	m.Low, m.High = mean-half, mean+half
	return m
}

// students are the 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
var students = [...]float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
	2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

// student is the 97.5 % quantile of Student's t, by Cornish and Fisher's expansion where
// the table ends: there it is right to three digits.
func student(freedom int) float64 {
	if freedom <= len(students) {
		return students[freedom-1]
	}
	const z = 1.959964
	v := float64(freedom)
	return z + (z*z*z+z)/(4*v) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*v*v)
}
