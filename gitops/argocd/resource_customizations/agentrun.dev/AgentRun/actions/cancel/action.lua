-- Ask the run to end. One way.
obj.spec.cancel = true
return obj
