from accountants import tune

D = {"delta": 1e-5}
f = tune.composed(tune.budget_recycled("gaussian", epsilon=1.0, **D), count=300, epsilon=1.0, **D)
try:
    r = tune.best(f, tune.acceptance(theta=50.0))
    print(r.parameters, r.value, r.epsilon, r.delta)
except Exception as e:
    print(repr(e)[:200])
f1 = tune.budget_recycled("gaussian", epsilon=1.0, **D)
print(f1)
